"""Pre-training runs by name; every field of them can be set."""

from dataclasses import replace

from harmax.train.language.settings import PretrainSpec

TINY = PretrainSpec(
    n_layer=2, n_head=2, n_embd=32, context=32, vocab=100, generated=True, dtype="float32", compile=False
)

PRESETS: dict[str, PretrainSpec] = {
    # 10k steps of 480 x 1024 tokens and exponent sqrt(768) = 28, as in the paper. Weight decay 0 is that of the
    # authors' code, whose exponent is 1536 (--exponent 1536). Clipping at 1 is nanoGPT's habit.
    "paper-standard": PretrainSpec(head="linear", lr=6e-4, min_lr=3e-5, warmup=2_000, weight_decay=0.0),
    "paper-harmonic": PretrainSpec(
        head="harmonic", exponent=28.0, lr=6e-3, min_lr=3e-4, warmup=1_000, weight_decay=0.0
    ),
    # The learning rate of each head comes from a sweep (--lr); --min-lr is a tenth of it.
    "matched": PretrainSpec(steps=1_000, warmup=100, lr=1e-3, min_lr=1e-4, evaluate_every=100),
    "smoke": replace(
        TINY,
        sequences=16,
        micro_batch=8,
        steps=40,
        lr=1e-2,
        min_lr=1e-3,
        warmup=5,
        log_every=1,
        evaluate_every=20,
        evaluation_sequences=16,
        checkpoint_every=10,
    ),
}

DESCRIPTIONS: dict[str, str] = {
    "paper-standard": "GPT-2 small, linear head, the paper's schedule, 10,000 steps. Needs a GPU and --data.",
    "paper-harmonic": "GPT-2 small, harmonic head, the paper's schedule, 10,000 steps. Needs a GPU and --data.",
    "matched": "GPT-2 small, one schedule for every --head, 1,000 steps. Needs a GPU and --data.",
    "smoke": "A tiny model on generated tokens, to see that everything works. Takes seconds on a CPU.",
}
