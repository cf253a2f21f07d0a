"""What a pre-training run is told, and which of it decides the numbers."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harmax.errors import unknown
from harmax.functional import check_softening, resolve_exponent

HEADS = ("harmonic", "linear", "gaussian")

# These say where, how fast and for how long; a run may go on with others. The data are compared by their content.
FREE = (
    "data",
    "generated",
    "steps",
    "micro_batch",
    "compile",
    "engine",
    "log_every",
    "evaluate_every",
    "evaluation_sequences",
    "checkpoint_every",
    "keep",
)

# These a run that would fail may go on with after a change, if its user says so: it stays the same model.
SCHEDULE = ("lr", "min_lr", "warmup", "decay_steps", "betas", "weight_decay", "clip")


@dataclass(frozen=True, kw_only=True)
class PretrainSpec:
    """A GPT-2, its head, its text and its schedule.

    A step sees `sequences` x `context` tokens whatever the number of processes: each takes `micro_batch` sequences at
    a time, and as many times as it needs.
    """

    head: Literal["harmonic", "linear", "gaussian"] = "harmonic"
    """How the model predicts: by distances to centers, by inner products (transformers' own GPT-2), or, between them,
    by inner products less half the squared norm of the token's row: the Gaussian limit of harmonic."""
    logit_scale: float = 1.0
    """What the logits of the linear and the gaussian head are multiplied by: exponent n at distances d has n / d^2."""
    exponent: float | None = None
    """Of the harmonic head; sqrt(n_embd) if left out."""
    learn_exponent: bool = False
    """Whether the exponent is learned, from there."""
    softening: float = 0.0
    """Added to the squared distance."""
    tied: bool = True
    """Whether head and embedding are one matrix."""

    n_layer: int = 12
    """Blocks."""
    n_head: int = 12
    """Attention heads of a block."""
    n_embd: int = 768
    """Features."""
    context: int = 1024
    """Tokens of a sequence."""
    vocab: int = 50257
    """Tokens there are; rows of embedding and head are padded to a multiple of 64, in both arms."""

    data: Path | None = None
    """A folder of token shards (`harmax data text`)."""
    generated: bool = False
    """Whether to make tokens up where no folder is named: they only show that everything works."""
    sequences: int = 480
    """Sequences of a step, over all processes."""
    micro_batch: int = 16
    """Sequences that a process computes at once."""
    steps: int = 10_000
    """Updates after which to stop."""

    lr: float = 6e-4
    """Learning rate at the end of the warm-up."""
    min_lr: float = 6e-5
    """Learning rate at the end of the cosine."""
    warmup: int = 2_000
    """Steps of linear warm-up."""
    decay_steps: int | None = None
    """Step at which the cosine ends; `steps` if left out."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW."""
    weight_decay: float = 0.1
    """On matrices only, never on biases and norms."""
    decay_centers: bool = True
    """Whether it also acts on the centers, that is on the head's matrix and what is tied to it."""
    clip: float = 1.0
    """Largest norm of the gradient; 0: no clipping."""

    dtype: Literal["bf16", "float32"] = "bf16"
    """What matrix products are computed in; weights and optimizer state are float32."""
    compile: bool = True
    """Whether to compile the model."""
    seed: int = 0
    """Of the initial weights and of the order of the text."""
    engine: Literal["single", "ddp", "fsdp"] = "single"
    """One process, or under torchrun: every process with the whole model, or with a shard of it."""

    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    evaluate_every: int = 500
    """Steps between evaluations on the val split; 0: only at the end."""
    evaluation_sequences: int = 480
    """Sequences of an evaluation, evenly spread over the val split."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints to keep."""

    def __post_init__(self) -> None:
        least = {"n_layer": 1, "n_head": 1, "n_embd": 1, "context": 1, "vocab": 2, "sequences": 1, "micro_batch": 1}
        least |= {"steps": 1, "warmup": 0, "seed": 0, "log_every": 1, "evaluate_every": 0, "evaluation_sequences": 1}
        least |= {"checkpoint_every": 1, "keep": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"`{name}` must be at least {smallest}, got {getattr(self, name)}; give a larger one.")
        for name in ("weight_decay", "clip", "min_lr"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"`{name}` must not be negative, got {getattr(self, name)}; 0 turns it off.")
        if not self.lr >= self.min_lr or not self.lr > 0:
            raise ValueError(
                f"`lr` must be positive and at least `min_lr` ({self.min_lr}), got {self.lr}; the cosine goes down."
            )
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"`decay_steps` must be at least 1, got {self.decay_steps}; leave it out for `steps`.")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"`n_embd` must be a multiple of `n_head` ({self.n_head}), got {self.n_embd}; each head has its part."
            )
        if self.head not in HEADS:
            raise ValueError(unknown("head", self.head, HEADS))
        check_logit_scale(self.head, self.logit_scale)
        if self.learn_exponent and self.head != "harmonic":
            raise ValueError(f"`learn_exponent` must go with the harmonic head, got the {self.head} one; leave it out.")
        resolve_exponent(self.exponent, self.n_embd)
        check_softening(self.softening)

    @property
    def end_of_decay(self) -> int:
        """The step at which the learning rate has come down to `min_lr`."""
        return self.steps if self.decay_steps is None else self.decay_steps

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers of step after step, as plain values."""
        fields = {name: value for name, value in asdict(self).items() if name not in FREE}
        return {**fields, "betas": list(self.betas), "decay_steps": self.end_of_decay}

    def accumulation(self, world: int) -> int:
        """How many times each of `world` processes computes before a step is taken."""
        if self.sequences % (self.micro_batch * world):
            raise ValueError(
                f"`sequences` ({self.sequences}) must be a multiple of `micro_batch` x processes, got "
                f"{self.micro_batch} x {world}; take another `micro_batch`."
            )
        return self.sequences // (self.micro_batch * world)


def check_logit_scale(head: str, scale: float) -> None:
    """Refuse a scale that is none, and one for a head that has an exponent instead."""
    if not 0 < scale < math.inf:
        raise ValueError(f"`logit_scale` must be a positive, finite number, got {scale}; 1 is none.")
    if head == "harmonic" and scale != 1:
        raise ValueError(
            f"`logit_scale` must be 1 with the harmonic head, whose probabilities have no scale, got {scale}; give an "
            "`exponent`."
        )
