"""`harmax pretrain`: train a GPT-2, or go on with one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from harmax.cli.training import supervise
from harmax.train import PRESETS, PretrainSpec

if TYPE_CHECKING:
    Preset = PretrainSpec
else:
    Preset = tyro.extras.subcommand_type_from_defaults(PRESETS, prefix_names=False)


@tyro.conf.configure(
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.CascadeSubcommandArgs,  # --output may stand after the preset
)
@dataclass(frozen=True)
class Pretrain:
    """Pre-train a GPT-2 with a harmonic, linear or gaussian head; the same command goes on after a stop."""

    spec: Preset
    """A preset; every field of it can be given."""
    output: Path
    """The run's folder: checkpoints, metrics.jsonl, and model/ for transformers at the end."""
    device: str | None = None
    """Where to compute: cpu, cuda, cuda:1; a GPU where there is one if left out."""
    log: tuple[str, ...] = ()
    """Where metrics also go, if installed: tensorboard, wandb."""
    change_schedule: bool = False
    """Go on from a checkpoint of another lr, min-lr, warmup, decay-steps, betas, weight-decay or clip, with these."""
    json: bool = False
    """Print the last line of metrics as JSON."""

    def __call__(self) -> int:
        """Train, and say where the model is."""
        from harmax.train.pretrain import Pretraining

        return supervise(
            self,
            lambda world: Pretraining(self.spec, self.output, world, change_schedule=self.change_schedule),
            words=step_words,
            loading=loading_words(self.spec, self.output / "model"),
        )


def loading_words(spec: PretrainSpec, model: Path) -> str:
    """Say how a trained model is loaded, and what it is not.

    >>> print(loading_words(PretrainSpec(data=Path("tokens")), Path("run/model")))
    load it with: import transformers, harmax.hf; transformers.AutoModelForCausalLM.from_pretrained('run/model')
    """
    module = {"harmonic": ", harmax.hf", "gaussian": ", harmax.train.gaussian"}.get(spec.head, "")
    load = f"import transformers{module}; transformers.AutoModelForCausalLM.from_pretrained({str(model)!r})"
    kind = "" if spec.data else "its tokens were generated: the losses show that everything works, no more\n"
    return f"{kind}load it with: {load}"


def step_words(record: dict[str, Any], steps: int) -> str:
    """Write one line of metrics for a reader.

    >>> record = {"step": 10, "loss": 3.25, "lr": 6e-4, "tokens_per_s": 5.2e5, "mfu": 0.45, "memory_gib": 21.0}
    >>> step_words({**record, "seconds_left": 3700.0}, 100)
    'step 10/100  loss 3.2500  lr 6.00e-04  520,000 tokens/s  MFU 45.0 %  21.00 GiB  1:01:40 left'
    """
    parts = [f"step {record['step']}/{steps}", f"loss {record['loss']:.4f}"]
    if "val_loss" in record:
        parts.append(f"val {record['val_loss']:.4f}")
    parts += [f"lr {record['lr']:.2e}", f"{record['tokens_per_s']:,.0f} tokens/s"]
    if "mfu" in record:
        parts.append(f"MFU {record['mfu']:.1%}".replace("%", " %"))
    minutes, seconds = divmod(round(record["seconds_left"]), 60)
    parts += [f"{record['memory_gib']:.2f} GiB", f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"]
    return "  ".join(parts)
