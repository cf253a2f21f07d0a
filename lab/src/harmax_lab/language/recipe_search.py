"""The search for a recipe: exponent, scales at the start, learning rates and decay of a small GPT, three families.

    harmax search language --smoke       does it work: a tiny model on generated tokens
    harmax search language --minutes 25  the corpus of the data folder, as long as there is time; meant for a GPU
    harmax search language --finals      after the search: the best of each family, five new seeds, the validation set

Every family has the same number of runs and of steps. The last million training tokens are held out, and the runs are
compared by their loss on them. Only the final runs use the validation set. They learn from all training tokens.
"""

import gc
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harmax.data.text import Manifest, Shard, TokenShards
from harmax.data.text.manifest import TOKEN, ShardWriter
from harmax.train.language.text import generate_shards
from harmax_lab.language.pretraining import TrainingSpec, pretrain_spec, unpacked_corpus
from harmax_lab.search.finals import FINAL
from harmax_lab.search.plan import DIVERGED, OneOf, Outcome, Range, Rounds, Search, Space, Trial

HELD_OUT = 1_000_000
"""Training tokens that judge the runs of the search."""

_SHARED: dict[str, Range | OneOf] = {
    "lr": Range(5e-4, 2e-2),
    "center_std": Range(0.005, 1.0),
    "center_lr": Range(0.1, 30.0),
    "weight_decay": Range(0.01, 1.0),
    "decay_centers": OneOf((False, True)),
    "tied": OneOf((True, False)),
}


@dataclass(frozen=True)
class Family:
    """What a family of models has fixed, and what is searched."""

    fixed: Mapping[str, Any]
    space: Space


FAMILIES: dict[str, Family] = {
    "cross_entropy": Family(
        {"head": "linear"}, {"logit_scale": Range(0.25, 16.0), "norm_gain": Range(0.05, 4.0), **_SHARED}
    ),
    "harmonic": Family(
        {"head": "harmonic"}, {"exponent": Range(20.0, 1536.0), "norm_gain": Range(0.005, 2.0), **_SHARED}
    ),
    "harmonic_root": Family({"head": "harmonic"}, {"norm_gain": Range(0.005, 2.0), **_SHARED}),
}
"""`harmonic_root` has the default exponent, which is the paper's: the square root of the width."""


@dataclass(frozen=True, kw_only=True)
class SearchSize:
    """The model, its text, and how many runs there are."""

    training: TrainingSpec
    rounds: Rounds


SIZES: dict[str, SearchSize] = {
    "full": SearchSize(
        training=TrainingSpec(
            n_layer=6, n_head=6, n_embd=384, context=512, sequences=128, micro_batch=128, checkpoint_every=10**6
        ),
        rounds=Rounds(spread=48, longer=12, near=12, full=4, steps=(150, 300, 600)),
    ),
    "smoke": SearchSize(
        training=TrainingSpec(
            embedded=True,
            n_layer=1,
            n_head=2,
            n_embd=16,
            context=16,
            vocab=64,
            sequences=8,
            micro_batch=8,
            evaluation_sequences=16,
            dtype="float32",
            compile=False,
        ),
        rounds=Rounds(spread=2, longer=1, near=1, full=1, steps=(4, 8, 12)),
    ),
}


def plan(size: str, table: Path, device: str) -> Search:
    """Return the search of a size, with its tokens ready: a key of `SIZES`, its table of runs, where to train."""
    chosen, tokens = SIZES[size], table.parent / f"{table.stem}-tokens"
    if chosen.training.embedded:
        generate_shards(tokens, vocab=chosen.training.vocab)
        corpus = tokens
    else:
        corpus = unpacked_corpus()
        hold_out(corpus, tokens, HELD_OUT)
    families = {name: family.space for name, family in FAMILIES.items()}
    train = Trainer(chosen.training, tokens, corpus, device)
    return Search(families=families, rounds=chosen.rounds, train=train, final_steps=chosen.rounds.steps[2])


@dataclass(frozen=True)
class Trainer:
    """Trains the runs of a search: final ones on the whole corpus, all others without the tokens that are held out."""

    size: TrainingSpec
    tokens: Path
    corpus: Path
    device: str

    def __call__(self, trial: Trial) -> Outcome:
        """Train one model, and return its loss on the held-out tokens, or on the validation set."""
        return train(self.size, self.corpus if trial.round == FINAL else self.tokens, trial, self.device)


def train(size: TrainingSpec, tokens: Path, trial: Trial, device: str) -> Outcome:
    """Train one model, and return its loss on the val split of some tokens; nothing is written."""
    import torch

    from harmax.train.language.step import LanguageStep
    from harmax.train.language.train import LanguageRecipe
    from harmax.train.world import joined

    settings = dict(trial.settings)
    lr = settings.pop("lr")
    spec = replace(size, steps=trial.steps, warmup=trial.steps // 6)
    arm = {**FAMILIES[trial.family].fixed, **settings}
    asked = pretrain_spec(spec, arm, lr=lr, seed=trial.seed, data=tokens)
    since, diverged = time.perf_counter(), None
    with joined(asked, device) as world:
        recipe = LanguageRecipe(asked, world)
        recipe.open_data(tokens)
        recipe.build()
        recipe.start(None)
        assert isinstance(recipe.step, LanguageStep)
        loss = math.nan
        try:
            for step in range(1, asked.steps + 1):
                recipe.update(step)
                if step % 50 == 0 or step == asked.steps:
                    recipe.gather(False)
            loss = recipe.evaluate()["val_loss"]
        except FloatingPointError:
            loss, diverged = DIVERGED, recipe._step
    del recipe
    gc.collect()  # a compiled model lies in cycles, and the next one needs its memory
    notes = {"diverged_at": diverged, "seconds": round(time.perf_counter() - since, 2), "torch": torch.__version__}
    return loss, notes


def hold_out(corpus: Path, folder: Path, count: int) -> None:
    """Write token shards whose val split is the end of a corpus's train split, and whose train split is the rest.

    Args:
        corpus: a folder of token shards.
        folder: to write to; one that is complete is kept.
        count: tokens to hold out.
    """
    train = TokenShards(corpus, "train")
    folder.mkdir(parents=True, exist_ok=True)
    source = {"source": {"held out": {"fingerprint": train.fingerprint, "tokens": count}}}
    manifest = Manifest(train.vocabulary, source).resume(folder)
    if manifest.complete:
        return
    manifest = replace(manifest, shards=())
    if not 0 < count < train.shards[-1].tokens:
        raise ValueError(
            f"`count` must be below the {train.shards[-1].tokens} tokens of the last train shard, got {count}."
        )
    parts = [(shard.name, "train", corpus / shard.name, 0, shard.tokens) for shard in train.shards]
    name, _, path, _, tokens = parts[-1]
    parts[-1] = (name, "train", path, 0, tokens - count)
    parts.append(("val-held-out.bin", "val", path, tokens - count, tokens))
    for name, split, path, start, end in parts:
        writer = ShardWriter(folder, name)
        own = np.memmap(path, TOKEN, mode="r")[start:end]
        writer.add(own)
        documents = int((own == train.vocabulary.separator).sum())
        manifest = manifest.add(Shard(name, split, end - start, documents, writer.finish(), path.name))
    replace(manifest, complete=True).write(folder)
