"""The vocabulary of a corpus: GPT-2's byte-level BPE, with tiktoken."""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harmax.errors import needs
from harmax.files import read_whole

if TYPE_CHECKING:
    from tiktoken import Encoding

SEPARATOR = "<|endoftext|>"
FILES = ("vocab.bpe", "encoder.json")
LARGEST = 2**16  # tokens are stored as uint16


@dataclass(frozen=True)
class Vocabulary:
    """The meaning of the token numbers of a shard."""

    name: str
    """gpt2 or custom."""
    size: int
    separator: int
    """The token that ends every document."""
    sha256: str
    """Digest of the tokens' bytes in their order."""


GPT2 = Vocabulary("gpt2", 50257, 50256, "a5623714bcf19049eb0fd78df19b6daa1e61ac435b86a5deae767768e7fcdc3d")


def load_encoding(folder: Path | str | None = None) -> "Encoding":
    """Load a BPE from a folder with encoder.json and vocab.bpe; without a folder, load GPT-2's with tiktoken.

    Without a folder, tiktoken uses its cache or downloads the two files. A folder needs no network. It may hold another
    byte-level vocabulary, if it splits texts into words as GPT-2's does.
    """
    return _download() if folder is None else _load(Path(folder))


def describe(encoding: "Encoding") -> Vocabulary:
    """Return the vocabulary of an encoding. Encodings with equal digests give equal tokens."""
    if encoding.n_vocab > LARGEST:
        raise ValueError(
            f"`encoding` must have at most {LARGEST} tokens, because tokens are stored in 16 bits, got "
            f"{encoding.n_vocab}; use GPT-2's."
        )
    hasher = hashlib.sha256()
    for token in range(encoding.n_vocab):
        word = encoding.decode_single_token_bytes(token)
        hasher.update(len(word).to_bytes(4, "little") + word)
    sha256 = hasher.hexdigest()
    name = GPT2.name if sha256 == GPT2.sha256 else "custom"
    return Vocabulary(name, encoding.n_vocab, encoding.eot_token, sha256)


@functools.cache  # loading takes a second
def _download() -> "Encoding":
    with needs("text"):
        import tiktoken
    try:
        return tiktoken.get_encoding("gpt2")
    except OSError as error:  # the base class of all errors of requests
        raise ValueError(
            f"GPT-2's vocabulary could not be downloaded ({_words(error)}); name a folder that holds "
            f"{' and '.join(FILES)} (--vocabulary)."
        ) from error


def _load(folder: Path) -> "Encoding":
    with needs("text"):
        import tiktoken
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
        from tiktoken_ext.openai_public import r50k_pat_str
    paths = merges, numbers = folder / FILES[0], folder / FILES[1]
    for path in paths:
        if not path.is_file():
            raise ValueError(
                f"a vocabulary folder must hold {' and '.join(FILES)}, got {str(folder)!r} without {path.name}; copy "
                "both files of the GPT-2 release there."
            )
    try:
        # tiktoken caches files by path. With the digests it notices that a file has changed.
        merges_sha256, numbers_sha256 = (hashlib.sha256(read_whole(path)).hexdigest() for path in paths)
        ranks = data_gym_to_mergeable_bpe_ranks(str(merges), str(numbers), merges_sha256, numbers_sha256)
        separator = json.loads(numbers.read_text(encoding="utf-8")).get(SEPARATOR, len(ranks))
        return tiktoken.Encoding(
            "gpt2",
            explicit_n_vocab=len(ranks) + 1,
            pat_str=r50k_pat_str,
            mergeable_ranks=ranks,
            special_tokens={SEPARATOR: separator},
        )
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{' and '.join(FILES)} in {str(folder)!r} must be the merges and the numbers of one byte-level "
            f"vocabulary, but they do not match ({_words(error)}); copy both from one release."
        ) from error


def _words(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
