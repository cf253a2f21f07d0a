"""Small vocabularies, texts and shards, made on the spot."""

import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np

MERGES = ["t h", "h e", "i n", "th e", "Ġ a", "Ġ the", "e r", "in g", "o n"]
WORDS = ["the", "sea", "of", "a", "winter", "singing", "on", "thin", "stones,", "1913;", "café", "Ω"]


class DyingEncoding:
    """An encoding whose process ends at the first text."""

    eot_token = 0

    def encode_ordinary(self, text: str) -> list[int]:
        os._exit(9)


def write_vocabulary(folder: Path, merges: list[str] = MERGES) -> Path:
    """Write a byte-level vocabulary as GPT-2's release has it: 256 bytes, then merges, then the separator."""
    folder.mkdir(parents=True, exist_ok=True)
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [*map(chr, printable), *(chr(256 + place) for place in range(len(others)))]
    words = [*letters, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    (folder / "encoder.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return folder


def make_texts(count: int, words: int = 40, seed: int = 0) -> list[str]:
    """Return documents of different lengths, no two alike."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 2 * words, size=count)
    return [f"{number}. " + " ".join(generator.choice(WORDS, size)) for number, size in enumerate(lengths)]


def write_shards(folder: Path, **shards: Any) -> Path:
    """Write plain .bin files, a name and its tokens each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tokens in shards.items():
        np.asarray(tokens).astype("<u2").tofile(folder / f"{name.replace('_', '-')}.bin")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_text_files(folder: Path) -> list[str]:
    """Write texts of every kind, packed and plain, and return the documents in the order of the files' names."""
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_bytes("\ufeffOne.\r\nTwo.\n".encode())
    (folder / "b/many.txt").write_text("first\n<|endoftext|>\nsecond <|endoftext|><|endoftext|>third\n")
    lines = [json.dumps({"text": text, "id": 3}) for text in ("x", "", "y\n<|endoftext|>")]
    (folder / "b/c.jsonl").write_text("\n".join([*lines, "", ""]))
    with gzip.open(folder / "d.txt.gz", "wt", encoding="utf-8") as file:
        file.write("Zürich")
    with lzma.open(folder / "e.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write('{"text": "half a character: \\ud83d"}\n')
    (folder / "f.pdf").write_bytes(b"not a text")
    return [
        "One.\nTwo.\n",
        "x",
        "",
        "y\n<|endoftext|>",
        "first",
        "second ",
        "",
        "third",
        "Zürich",
        "half a character: \ud83d",
    ]
