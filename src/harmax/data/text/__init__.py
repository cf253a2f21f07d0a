"""Text as tokens: shards on disk, and windows in a seeded order that can be resumed exactly.

prepare_text(out, from_files(["books/"]), encoding=load_encoding("gpt2_bpe"))
loader = TokenLoader(TokenShards(out, "train"), batch=480, length=1024, seed=0, rank=0, world=1)
inputs, targets = next(loader)
"""

from harmax.data.text.loader import TokenLoader
from harmax.data.text.manifest import Manifest, Shard
from harmax.data.text.packed import unpack_corpus
from harmax.data.text.prepare import prepare_text
from harmax.data.text.shards import TokenShards
from harmax.data.text.sources import TextSource, from_dataset, from_files, from_rows
from harmax.data.text.vocabulary import GPT2, Vocabulary, load_encoding

__all__ = [
    "GPT2",
    "Manifest",
    "Shard",
    "TextSource",
    "TokenLoader",
    "TokenShards",
    "Vocabulary",
    "from_dataset",
    "from_files",
    "from_rows",
    "load_encoding",
    "prepare_text",
    "unpack_corpus",
]
