"""The settings of a pre-training run, and which of them decide its numbers."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harmax.errors import unknown
from harmax.heads.scale import check_start
from harmax.train import checks

HEADS = ("harmonic", "linear", "gaussian")

# Fields that may differ when a run is resumed: where, how fast and for how long. The data are compared by checksums.
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

# What checkpoints mean that were written before the field existed.
MEANT_BEFORE = {"scale": 1.0, "start": "factor", "norm_gain": 1.0, "center_lr": 1.0}

# Fields that --change-schedule may alter when resuming.
ALTERABLE = ("lr", "min_lr", "warmup", "decay_steps", "betas", "weight_decay", "clip", "center_lr")


@dataclass(frozen=True, kw_only=True)
class PretrainSpec:
    """A GPT-2, its head, its text and its schedule.

    A step sees `sequences` x `context` tokens, whatever the number of processes. Each process computes `micro_batch`
    sequences at a time, as often as needed.
    """

    head: Literal["harmonic", "linear", "gaussian"] = "harmonic"
    """Output layer. harmonic: distances to class centers. linear: inner products (transformers' own GPT-2). gaussian:
    inner products minus half the squared norm of the token's row, which is the Gaussian limit of harmonic."""
    logit_scale: float = 1.0
    """Factor on the logits of the linear and gaussian heads. Exponent n at distance d corresponds to n / d^2."""
    exponent: float | None = None
    """Exponent of the harmonic head. Default: the square root of n_embd."""
    learn_exponent: bool = False
    """Learn the exponent, starting from `exponent`."""
    softening: float = 0.0
    """Number added to the squared distance in the harmonic head."""
    scale: float | None = None
    """Factor on the features of the harmonic head. Default: the one that matches their length to that of the centers at
    the start, see HarmonicHead.find_scale. 1: features as they are."""
    start: Literal["factor", "gain"] = "factor"
    """Where this factor goes. factor: into the head, as a constant. gain: into the gain of the last norm, which
    training can change."""
    norm_gain: float = 1.0
    """Gain of the last norm at the start. Below 1 it shortens the features of any head, and training can change it."""
    center_std: float | None = None
    """Standard deviation of the head's matrix at the start, and of the embedding if tied. Default: 0.02."""
    tied: bool = True
    """Use one matrix for the embedding and the head."""

    n_layer: int = 12
    """Number of transformer blocks."""
    n_head: int = 12
    """Number of attention heads per block."""
    n_embd: int = 768
    """Number of features."""
    context: int = 1024
    """Sequence length, in tokens."""
    vocab: int = 50257
    """Vocabulary size, in tokens. The rows of embedding and head are padded to a multiple of 64, for every head."""

    data: Path | None = None
    """Folder of token shards, made by `harmax data text`."""
    generated: bool = False
    """Without `data`, train on generated tokens. They only show that everything works."""
    sequences: int = 480
    """Sequences per step, over all processes."""
    micro_batch: int = 16
    """Sequences that one process computes at a time. Smaller needs less memory and gives the same result."""
    steps: int = 10_000
    """Number of updates after which to stop."""

    lr: float = 6e-4
    """Peak learning rate, reached at the end of the warm-up."""
    min_lr: float = 6e-5
    """Final learning rate, reached at the end of the cosine decay."""
    warmup: int = 2_000
    """Length of the linear warm-up, in steps."""
    decay_steps: int | None = None
    """Step at which the cosine decay ends. Default: `steps`."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    weight_decay: float = 0.1
    """AdamW's weight decay. It acts on matrices only, never on biases and norms."""
    center_lr: float = 1.0
    """Factor on the learning rate of the head's matrix, and of the embedding if tied."""
    decay_centers: bool = True
    """Let weight decay also act on the head's matrix, and on the embedding if tied."""
    clip: float = 1.0
    """Largest norm of the gradient. 0: no clipping."""

    dtype: Literal["bf16", "float32"] = "bf16"
    """Number format of matrix products. Weights and optimizer state are always float32."""
    compile: bool = True
    """Compile the model with torch.compile."""
    seed: int = 0
    """Seed of the initial weights and of the order of the text."""
    engine: Literal["single", "ddp", "fsdp", "tp"] = "single"
    """single: one process. Under torchrun, ddp: every process holds the whole model; fsdp: every process a shard, each
    with sequences of its own; tp: all processes compute the same sequences, each with some of the attention heads,
    hidden units and tokens."""

    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    evaluate_every: int = 500
    """Steps between evaluations on the val split. 0: only at the end."""
    evaluation_sequences: int = 480
    """Sequences per evaluation, evenly spaced over the val split."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep: int = 2
    """Number of checkpoints to keep."""

    def __post_init__(self) -> None:
        least = {"n_layer": 1, "n_head": 1, "n_embd": 1, "context": 1, "vocab": 2, "sequences": 1, "micro_batch": 1}
        least |= {"steps": 1, "warmup": 0, "seed": 0, "log_every": 1, "evaluate_every": 0, "evaluation_sequences": 1}
        checks.check_least(self, {**least, "checkpoint_every": 1, "keep": 1})
        checks.check_not_negative(self, "weight_decay", "min_lr")
        checks.check_positive(self, "norm_gain", "center_lr", *(("center_std",) if self.center_std is not None else ()))
        if not self.clip >= 0:
            raise ValueError(f"`clip` must not be negative, got {self.clip}; 0 turns it off.")
        if not self.lr >= self.min_lr or not self.lr > 0:
            raise ValueError(
                f"`lr` must be positive and at least `min_lr` ({self.min_lr}), got {self.lr}; the learning rate decays "
                "from `lr` to `min_lr`."
            )
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"`decay_steps` must be at least 1, got {self.decay_steps}; leave it out for `steps`.")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"`n_embd` must be a multiple of `n_head` ({self.n_head}), got {self.n_embd}; attention heads share "
                "the features equally."
            )
        if self.head not in HEADS:
            raise ValueError(unknown("head", self.head, HEADS))
        if self.learn_exponent and self.head != "harmonic":
            raise ValueError(f"`learn_exponent` must go with the harmonic head, got the {self.head} one; leave it out.")
        checks.check_head(self, self.n_embd)
        check_start(self.start, self.scale, self.softening)
        if self.start == "gain" and (self.head != "harmonic" or self.norm_gain != 1):
            raise ValueError(
                f"`start` gain must go with the harmonic head and a `norm_gain` of 1, got the {self.head} head and "
                f"{self.norm_gain:g}; it finds the gain itself."
            )

    @property
    def end_of_decay(self) -> int:
        """The step at which the learning rate has decayed to `min_lr`."""
        return self.steps if self.decay_steps is None else self.decay_steps

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers of step after step, as plain values."""
        fields = {name: value for name, value in asdict(self).items() if name not in FREE}
        own = {"decay_steps": self.end_of_decay, "scale": checks.known_scale(self.head, self.scale)}
        return {**fields, "betas": list(self.betas), **own}

    def micro_batches(self, world: int) -> int:
        """Return how many micro-batches each of `world` processes computes per step."""
        return checks.count_micro_batches("sequences", self.sequences, self.micro_batch, world)
