"""What the language experiments share: the settings of a pre-training with its measures, and a cell of it."""

from dataclasses import dataclass

from harmax_lab.kit.experiment import Cell, Spec

STANDARD, HARMONIC, NANOGPT = "standard", "harmonic", "nanogpt"


@dataclass(frozen=True, kw_only=True)
class TrainingSpec(Spec):
    """Settings of a GPT-2, its text and its schedule; nanoGPT's recipe where nothing else is said."""

    embedded: bool = False
    """Whether generated tokens, embedded word pairs and made-up sentences stand in for the data folder."""

    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    context: int = 1024
    vocab: int = 50257

    sequences: int = 256
    """Sequences of a step."""
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
    """Of an evaluation: sequences of the val split, and at the end as many of the train split."""
    checkpoint_every: int = 100
    """Steps between checkpoints, which is what a kill can cost; writing one stops the training for a while."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens that a step learns from."""
        return self.sequences * self.context

    @property
    def tokens(self) -> int:
        """Tokens that a run learns from, repetitions included."""
        return self.steps * self.tokens_per_step


@dataclass(frozen=True, kw_only=True)
class LanguageSpec(TrainingSpec):
    """Settings of a pre-training in both arms, and of what is measured on the models afterwards."""

    arms: tuple[str, ...] = (STANDARD, HARMONIC)
    lr_standard: float = 1e-3
    lr_harmonic: float = 1e-3
    exponent: float = 1536.0
    """Of the harmonic arm: 2 D, that of the authors' code; the paper's text has sqrt(D)."""
    nanogpt_sequences: int = 0
    """Sequences a step of one more standard model, with nanoGPT's batch and learning rate (480 and 6e-4) and as many
    tokens: it says whether the standard arm is a weak baseline. 0: no such model."""

    tasks: tuple[str, ...] = ()
    """Word-pair tasks; empty: the paper's twelve, or with `embedded` those that are embedded."""
    quadruples: int = 10_000
    """Pairs of word pairs a task, as the paper has."""
    layers: tuple[int, ...] = (6,)
    """Residual streams whose parallelograms are measured; 0 is what enters the first block."""
    probe_layers: tuple[int, ...] = (0, 6)
    probe_seeds: int = 10
    """Probes a layer and data set, each from its own start."""
    probe_sentences: int = 0
    """Sentences of a data set that a probe learns from, at most; 0: all."""


@dataclass(frozen=True)
class ArmCell(Cell):
    """One arm pre-trained from one seed."""

    arm: str
    seed: int
