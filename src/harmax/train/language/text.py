"""The text of a run: opened or generated, and refused where it does not fit."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from harmax.data.text import Manifest, Shard, TokenShards, Vocabulary
from harmax.data.text.manifest import ShardWriter
from harmax.files import make_folder
from harmax.train.language.settings import PretrainSpec
from harmax.train.world import World

LENGTHS = {"train": 2**16, "val": 2**12}
"""Tokens per split of a generated text."""


def open_text(spec: PretrainSpec, output: Path, world: World) -> tuple[TokenShards, TokenShards]:
    """Return the train and the val split of a run's text; a generated one lies in the output folder."""
    folder = _generate(spec, output / "tokens", world) if spec.data is None else spec.data
    train, val = TokenShards(folder, "train"), TokenShards(folder, "val")
    if train.vocabulary.size > spec.vocab:
        raise ValueError(
            f"`vocab` must be at least {train.vocabulary.size}, the vocabulary of {str(folder)!r}, got {spec.vocab}; "
            "give a larger one, or the text that belongs to it."
        )
    if not val.count_windows(spec.context):
        raise ValueError(
            f"the val split of {str(folder)!r} must hold a sequence of {spec.context} tokens and one more, got "
            f"{val.tokens} tokens; use a shorter `context`, or prepare more text."
        )
    if train.count_windows(spec.context) < spec.sequences:
        raise ValueError(
            f"the train split of {str(folder)!r} must hold the {spec.sequences} sequences of a step, {spec.context} "
            f"tokens each, got {train.tokens} tokens; prepare more text, or use fewer `sequences`."
        )
    return train, val


def _generate(spec: PretrainSpec, folder: Path, world: World) -> Path:
    if not spec.generated:
        raise ValueError("`data` must name a folder of token shards, got none; make one with `harmax data text`.")
    world.lead(lambda: generate_shards(folder, vocab=spec.vocab))
    return folder


def generate_shards(folder: Path, *, vocab: int, seed: int = 0) -> None:
    """Write token shards that a small model can learn from: 80 % of tokens are a fixed successor of the one before."""
    if not 2 <= vocab <= 2**16:
        raise ValueError(f"`vocab` must lie in 2..65536 for generated tokens, got {vocab}; give a `data` folder.")
    make_folder(folder)
    name = hashlib.sha256(f"generated {vocab} {seed}".encode()).hexdigest()
    vocabulary = Vocabulary("generated", vocab, vocab - 1, name)
    manifest = Manifest(vocabulary, {"source": {"generated": {"vocab": vocab, "seed": seed}}}).resume(folder)
    if manifest.complete:
        return
    manifest = replace(manifest, shards=())
    generator = np.random.default_rng(seed)
    successor = generator.permutation(vocab)
    for split, count in LENGTHS.items():
        tokens = np.empty(count, np.int64)
        jumps, anywhere = generator.random(count) < 0.2, generator.integers(vocab, size=count)
        token = 0
        for place in range(count):
            token = int(anywhere[place] if jumps[place] else successor[token])
            tokens[place] = token
        writer = ShardWriter(folder, f"{split}-00000.bin")
        writer.add(tokens)
        manifest = manifest.add(Shard(f"{split}-00000.bin", split, count, 1, writer.finish(), "generated"))
    replace(manifest, complete=True).write(folder)
