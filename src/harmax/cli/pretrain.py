"""`harmax pretrain`: train a GPT-2, or go on with one."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.live import Live
from rich.text import Text

from harmax.cli.usage import check_folder, checking_usage, print_json
from harmax.train import PRESETS, PretrainSpec

if TYPE_CHECKING:
    from harmax.train.world import World

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
        from harmax.train.loggers import check_loggers
        from harmax.train.world import joined

        with ExitStack() as stack:
            with checking_usage():
                check_folder(self.output)
                check_loggers(self.log)
                world = stack.enter_context(joined(self.spec, self.device))
            return self._train(world)  # the model is gone before the processes part

    def _train(self, world: "World") -> int:
        from harmax.train.loggers import LOGGERS
        from harmax.train.pretrain import Pretraining

        with checking_usage():
            training = Pretraining(self.spec, self.output, world, change_schedule=self.change_schedule)
        for caution in training.cautions if world.leads else ():
            print(f"harmax: {caution}", file=sys.stderr)
        takers: list[Callable[[dict[str, Any]], None]] = []
        with ExitStack() as stack:
            if world.leads:
                takers.append(stack.enter_context(ShowSteps(self.spec.steps, training.step)))
                for name in self.log:
                    logger = LOGGERS[name](self.spec, self.output, training.step)
                    stack.callback(logger.close)
                    takers.append(logger)
            try:
                record = training.run(lambda record: [take(record) for take in takers])
            except KeyboardInterrupt:
                return self._stop(f"stopped; the same command goes on after step {training.saved}.", world, 130)
            except FloatingPointError as error:
                return self._stop(str(error), world, 1)
        if world.leads:
            model = self.output / "model"
            if self.json:
                print_json({**record, "folder": str(self.output), "model": str(model)})
            else:
                print(loading_words(self.spec, model), file=sys.stderr)
                print(model)
        return 0

    @staticmethod
    def _stop(words: str, world: "World", status: int) -> int:
        if world.leads:
            print(f"harmax: {words}", file=sys.stderr)
        return status


def loading_words(spec: PretrainSpec, model: Path) -> str:
    """Say how a trained model is loaded, and what it is not.

    >>> print(loading_words(PretrainSpec(data=Path("tokens")), Path("run/model")))
    load it with: import transformers, harmax.hf; transformers.AutoModelForCausalLM.from_pretrained('run/model')
    """
    module = {"harmonic": ", harmax.hf", "gaussian": ", harmax.train.gaussian"}.get(spec.head, "")
    load = f"import transformers{module}; transformers.AutoModelForCausalLM.from_pretrained({str(model)!r})"
    kind = "" if spec.data else "its tokens were generated: the losses show that everything works, no more\n"
    return f"{kind}load it with: {load}"


class ShowSteps:
    """Shows lines of metrics on standard error: one that changes on a terminal, one after another elsewhere."""

    def __init__(self, steps: int, done: int) -> None:
        self._steps, self._done = steps, done
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=False) if self._console.is_terminal else None

    def __enter__(self) -> "ShowSteps":
        if self._done:
            self.say(f"going on after step {self._done}")
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        """Show one line of metrics."""
        words = step_words(record, self._steps)
        if self._live is None:
            self.say(words)
        else:
            self._live.update(Text(words, no_wrap=True, overflow="ellipsis"))

    def say(self, words: str) -> None:
        """Say something once."""
        print(words, file=sys.stderr, flush=True)


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
