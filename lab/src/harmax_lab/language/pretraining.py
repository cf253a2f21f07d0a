"""From a spec, an arm and a seed to a trained GPT-2 and its curves; an interrupted one goes on from its checkpoint.

A result holds, as curves, `step`, `loss`, `lr` and `gradient_norm` of every logged step, and `val_step` and `val_loss`
of every evaluation. Of its metrics, `cost` alone depends on the machine and on interruptions.
"""

# B sequences of a micro-batch, T tokens of each, L logged steps

import gc
import hashlib
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from harmax.data.folder import find_data
from harmax.data.text import TokenShards, unpack_corpus
from harmax.files import from_json
from harmax.train import PretrainSpec
from harmax_lab.kit.experiment import Progress, Spec
from harmax_lab.kit.store import CellResult

if TYPE_CHECKING:
    from harmax.train.language.train import LanguageRecipe

TAIL = 0.05  # share of the steps whose training losses are averaged: a single batch is noisy
LOGGED = ("step", "loss", "lr", "gradient_norm")
WITHOUT_DATA: dict[str, Any] = {"embedded": True, "dtype": "float32", "compile": False}
"""Settings of a profile that needs neither the data folder nor a GPU."""


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(Spec):
    """Settings of a GPT-2, its text and its schedule; the defaults follow nanoGPT's recipe."""

    FULL_TOKENS: ClassVar[int] = 0
    """Tokens of the full profile. Runs on fewer decide nothing."""

    embedded: bool = False
    """Whether generated tokens, embedded word pairs and made-up sentences stand in for the data folder."""

    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    context: int = 1024
    vocab: int = 50257

    sequences: int = 256
    """Sequences per step."""
    micro_batch: int = 32
    """Sequences that are computed at once."""
    steps: int = 960
    warmup: int = 100
    final_lr: float = 0.1
    """Where the cosine ends, as a share of the learning rate at its start."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    dtype: str = "bf16"
    compile: bool = True

    log_every: int = 10
    evaluate_every: int = 100
    evaluation_sequences: int = 480
    """Sequences of the val split per evaluation, and at the end as many of the train split."""
    checkpoint_every: int = 100
    """Steps between checkpoints: a killed run repeats at most so many. Writing one stops the training for a while."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step learns from."""
        return self.sequences * self.context

    @property
    def tokens(self) -> int:
        """Tokens that a run learns from, repetitions included."""
        return self.steps * self.tokens_per_step

    def stand_in(self) -> str:
        """Say that made-up text stood in for the corpus."""
        return "Generated tokens, embedded words and made-up sentences stood in for text." if self.embedded else ""

    def short_of(self, cells: Sequence[Any]) -> str:
        """Say that the runs saw fewer tokens than the full profile's."""
        if self.tokens >= self.FULL_TOKENS:
            return ""
        return f"Only {self.tokens / 1e6:.3g}M of the full profile's {self.FULL_TOKENS / 1e6:.3g}M tokens were read."


def part(progress: Progress, start: float, end: float, label: str = "") -> Progress:
    """Return how a part of the work tells its progress: as a fraction between two of the whole, under a label."""

    def tell(fraction: float, message: str = "", /) -> None:
        progress(start + (end - start) * fraction, ": ".join(filter(None, (label, message))))

    return tell


def train_model(
    spec: TrainingSpec, arm: Mapping[str, Any], lr: float, seed: int, output: Path, device: str, progress: Progress
) -> CellResult:
    """Train one model into a folder, whose `model/` transformers can load afterwards, and return its curves.

    A training that diverges is a result too, with an infinite loss.

    Args:
        spec: what all arms share.
        arm: the fields of a `PretrainSpec` that are the arm's own: its head, its exponent.
        lr: at the end of the warm-up.
        seed: of the initial weights and of the order of the text, so that arms with one seed read the same.
        output: keeps checkpoints; a folder with some goes on from the last.
        device: where to train.
        progress: is told after every logged step.
    """
    try:
        return _train(spec, arm, lr, seed, output, device, progress)
    except FloatingPointError:
        found = read_result(output)
        reached = int(found.curves["step"][-1]) if len(found.curves["step"]) else 0
        lost = {"val_loss": math.inf, "train_loss": math.inf, "gap": math.nan, "exponent": None, "parameters": None}
        seen = {"tokens": spec.tokens, "times_seen": None, "embedded": spec.embedded, "lr": lr}
        return CellResult(found.curves, {}, {**found.metrics, **lost, **seen, "diverged_at": reached + 1})


def _train(
    spec: TrainingSpec, arm: Mapping[str, Any], lr: float, seed: int, output: Path, device: str, progress: Progress
) -> CellResult:
    from harmax.train.language.train import LanguageRecipe
    from harmax.train.loop import Training
    from harmax.train.world import joined

    folder = output / "tokens" if spec.embedded else unpacked_corpus()
    asked = pretrain_spec(spec, arm, lr=lr, seed=seed, data=None if spec.embedded else folder)

    def tell(record: Mapping[str, Any]) -> None:
        step, speed = record["step"], record.get("tokens_per_s", 0.0)
        progress(step / asked.steps, f"step {step} of {asked.steps}, loss {record['loss']:.3f}, {speed:,.0f} tokens/s")

    with joined(asked, device) as world:
        if world.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(world.device)  # what earlier runs of this process needed is theirs
        recipe = LanguageRecipe(asked, world)
        Training(recipe, output).run(tell)
        losses = {split: mean_loss(recipe, TokenShards(folder, split)) for split in ("train", "val")}
        exponent = recipe.model.lm_head.exponent if asked.head == "harmonic" else None
        end = {
            "train_loss": losses["train"],
            "gap": losses["val"] - losses["train"],
            "parameters": sum(parameter.numel() for parameter in recipe.model.parameters()),
            "exponent": exponent.item() if isinstance(exponent, torch.Tensor) else exponent,
        }
    del recipe
    gc.collect()  # a compiled model lies in cycles, and the next one needs its memory
    windows = TokenShards(folder, "train").count_windows(spec.context)
    seen = {"tokens": spec.tokens, "times_seen": spec.steps * spec.sequences / windows, "embedded": spec.embedded}
    result = read_result(output)
    return CellResult(result.curves, {}, {**result.metrics, **end, **seen, "lr": lr, "diverged_at": None})


def pretrain_spec(
    spec: TrainingSpec, arm: Mapping[str, Any], *, lr: float, seed: int, data: Path | None
) -> PretrainSpec:
    """Return what the trainer is told; without data it generates tokens."""
    names = {field.name for field in fields(TrainingSpec)} & {field.name for field in fields(PretrainSpec)}
    shared = {name: getattr(spec, name) for name in names}
    own = {"data": data, "generated": data is None, "lr": lr, "min_lr": spec.final_lr * lr, "seed": seed, "keep": 1}
    own["scale"] = 1.0  # features as they are, as the published models were trained
    return PretrainSpec(**{**shared, **own, **arm})


def read_result(output: Path) -> CellResult:
    """Read what a run has logged so far; the validation loss is infinite where no evaluation came to a number."""
    path = output / "metrics.jsonl"
    lines = [from_json(line) for line in path.read_text().splitlines()] if path.is_file() else []
    evaluated = [line for line in lines if "val_loss" in line]

    def curve(rows: list[dict[str, Any]], name: str) -> np.ndarray:
        return np.array([row[name] for row in rows], dtype=np.int64 if name == "step" else np.float32)

    curves = {name: curve(lines, name) for name in LOGGED}
    step_L = curves["step"]
    tail = curves["loss"][step_L > (1 - TAIL) * step_L[-1]] if lines else np.array([math.inf])
    metrics = {
        "val_loss": evaluated[-1]["val_loss"] if evaluated else math.inf,
        "last_batches_loss": float(tail.mean(dtype=float)),
        "cost": _cost(lines),
    }
    return CellResult(
        {**curves, "val_step": curve(evaluated, "step"), "val_loss": curve(evaluated, "val_loss")}, {}, metrics
    )


def _cost(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a training took; evaluations and checkpoints are in none of it."""
    if not lines:
        return {}
    tokens = np.diff([0, *(line["tokens"] for line in lines)])
    speed = [line["tokens_per_s"] for line in lines]
    settled = lines[len(lines) // 4 :]  # the first lines hold the compilation
    medians = ("tokens_per_s", "mfu") if "mfu" in lines[-1] else ("tokens_per_s",)
    return {
        **{name: float(np.median([line[name] for line in settled])) for name in medians},
        "training_seconds": float(sum(tokens / np.array(speed))),
        "memory_gib": max(line["memory_gib"] for line in lines),
        "tokens_per_s_by_step": speed,
    }


@torch.no_grad()
def mean_loss(recipe: "LanguageRecipe", shards: TokenShards) -> float:
    """Return a model's mean loss of `evaluation_sequences` windows that are evenly spread over a split."""
    from harmax.train.language.model import NextTokenLoss
    from harmax.train.world import autocast

    spec, device = recipe.spec, recipe.world.device
    loss = NextTokenLoss(recipe.model, spec)
    windows = shards.count_windows(spec.context)
    chosen = np.unique(np.linspace(0, windows - 1, min(spec.evaluation_sequences, windows)).astype(np.int64))
    total = 0.0
    for start in range(0, len(chosen), spec.micro_batch):
        read_BT = shards.read_windows(chosen[start : start + spec.micro_batch], spec.context)
        tokens_BT = torch.from_numpy(read_BT).to(device)
        with autocast(spec.dtype, device):
            total += float(loss(tokens_BT[:, :-1], tokens_BT[:, 1:]))
    return total / (len(chosen) * spec.context)


def unpacked_corpus() -> Path:
    """Return the data folder's corpus as token shards, unpacked the first time.

    They lie in HARMAX_CACHE where that is set, else in the user's own cache folder.
    """
    data = find_data()
    if data is None or not (data / "corpus").is_dir():
        raise FileNotFoundError(
            f"corpus/ must lie in the data folder, got {'no data folder' if data is None else f'{data} without it'}; "
            "set HARMAX_DATA to a folder that has it."
        )
    listing = sorted((path.name, path.stat().st_size) for path in (data / "corpus").glob("*.bin*"))
    general = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("HARMAX_CACHE") or general / "harmax")
    target = cache / f"corpus-{hashlib.sha256(repr(listing).encode()).hexdigest()[:12]}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    # Under a name of its own, so that two processes can unpack at once and a kill leaves nothing that looks whole.
    with tempfile.TemporaryDirectory(prefix=".corpus-", dir=cache) as own:
        unpack_corpus(data / "corpus", Path(own, "corpus"))
        try:
            Path(own, "corpus").rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first
                raise
    return target
