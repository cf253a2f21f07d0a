"""Text without a text: tokens that a small model can learn something from, for trying the machinery out."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from harmax.data.text import Manifest, Shard, Vocabulary
from harmax.data.text.manifest import ShardWriter

LENGTHS = {"train": 2**16, "val": 2**12}


def generate_shards(folder: Path, *, vocab: int, seed: int = 0) -> None:
    """Write token shards of a noisy progression: each token is mostly a fixed successor of the one before."""
    if not 2 <= vocab <= 2**16:
        raise ValueError(f"`vocab` must lie in 2..65536 for generated tokens, got {vocab}; name a `data` folder.")
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
