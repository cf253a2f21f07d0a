"""`harmax pretrain`: train a GPT-2, or resume one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from harmax.cli.training import TrainingFlags, supervise, time_left, verb_with_presets
from harmax.train.language import PRESETS, PretrainSpec
from harmax.train.language.presets import DESCRIPTIONS

if TYPE_CHECKING:
    Preset = PretrainSpec
else:
    Preset = tyro.extras.subcommand_type_from_defaults(PRESETS, DESCRIPTIONS, prefix_names=False)


@verb_with_presets
@dataclass(frozen=True, kw_only=True)
class Pretrain(TrainingFlags):
    """Pre-train a GPT-2 with a harmonic, linear or gaussian head. After a stop, the same command resumes the run."""

    spec: Preset
    """A preset. Every field of it can be set: `harmax pretrain PRESET --help` lists them."""

    def __call__(self) -> int:
        """Train, and print where the model is."""
        from harmax.train.language.train import LanguageRecipe

        return supervise(
            self,
            self.spec,
            lambda world: LanguageRecipe(self.spec, world),
            words=step_words,
            loading=loading_words(self.spec, self.output / "model"),
        )


def loading_words(spec: PretrainSpec, model: Path) -> str:
    """Say how a trained model is loaded, and whether its tokens were generated.

    >>> print(loading_words(PretrainSpec(data=Path("tokens")), Path("run/model")))
    load it with: import transformers, harmax.hf; transformers.AutoModelForCausalLM.from_pretrained('run/model')
    """
    module = {"harmonic": ", harmax.hf", "gaussian": ", harmax.train.language.gaussian"}.get(spec.head, "")
    load = f"import transformers{module}; transformers.AutoModelForCausalLM.from_pretrained({str(model)!r})"
    kind = "" if spec.data else "its tokens were generated: the losses only show that everything works\n"
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
    parts += [f"{record['memory_gib']:.2f} GiB", time_left(record["seconds_left"])]
    return "  ".join(parts)
