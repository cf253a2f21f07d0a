"""Everything that harmax reads from a disk: a valid example of each kind of file, and the reader."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harmax.data.checksums import read_sums
from harmax.data.folder import read_text
from harmax.data.glue import load_glue
from harmax.data.images.cifar import read_packed
from harmax.data.images.decoding import FORMATS, decode_image
from harmax.data.images.folders import class_folder, read_archives
from harmax.data.images.idx import read_idx
from harmax.data.images.picture_files import find_pictures
from harmax.data.images.picture_list import read_picture_list
from harmax.data.text import TokenShards, from_files, from_rows, load_encoding, prepare_text, unpack_corpus
from harmax.files import read_whole
from harmax.inspect.language_models import load_language_model, loading
from harmax.inspect.vision_folder import open_vision_folder
from harmax.sklearn import read_csv
from harmax.train.checkpoint import newest_checkpoint
from harmax.train.language.train import pretrain
from harmax.train.metrics import lines_until
from harmax.train.vision.train import train_classifier
from harmax_lab.kit.engine import run
from harmax_lab.kit.store import open_runs
from harmax_lab.report.html import write_report
from small_images import draw, encoded, idx, write_tar
from token_shards import make_texts, write_shards, write_text_files, write_vocabulary
from torture.works import TOY, TOY_CHANGES
from train.language import tiny
from train.vision import small

TEXT = "height,leaf,kind\n3.1,round,oak\n2.0,long,ash\n3.3,round,oak\n1.9,long,ash\n"
SST2 = "sentence\tlabel\nan odd film \t1\nno fun at all \t0\n"


class Reader(NamedTuple):
    """How one kind of file is made and read."""

    make: Callable[[Path], object]
    """Writes valid files to a new folder."""
    read: Callable[[Path], object]


def _picture(folder: Path, kind: str) -> None:
    (folder / f"picture.{kind.lower()}").write_bytes(encoded(draw(9, 7, 3), kind))


def _decode(folder: Path) -> object:
    return [decode_image(read_whole(path), path) for path in folder.iterdir()]


def _idx(folder: Path) -> None:
    (folder / "train-images-idx3-ubyte").write_bytes(idx(draw(3, 4, 4)))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([1, 0, 2], np.uint8))))


def _npz(folder: Path) -> None:
    images = [encoded(draw(32, 32, 3, seed=number)) for number in range(3)]
    arrays = {
        "blob": np.frombuffer(b"".join(images), np.uint8),
        "off": np.cumsum([0, *map(len, images)]),
        "label": np.array([0, 1, 2], np.uint8),
        "classes": np.array(["a", "b", "c"]),
    }
    np.savez(folder / "train.npz", **arrays)  # type: ignore[arg-type]  (it cannot tell names from flags)


def _archive(folder: Path) -> None:
    names = {f"train/{label}/{number}.png": encoded(draw(8, 8, 3)) for label in "ab" for number in range(2)}
    write_tar(folder / "train.tar.xz", names)


def _classes(folder: Path) -> None:
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for number in range(2):
            (folder / label / f"{number}.png").write_bytes(encoded(draw(8, 8, 3)))


def _list(folder: Path) -> None:
    one = {"file": "a/0.png", "label": "a", "sha256": "0" * 64}
    plain = {"root": str(folder), "classes": ["a"], "train": [one], "test": [one]}
    (folder / "pictures.json").write_text(json.dumps(plain))


def _table(folder: Path) -> None:
    _classes(folder)
    (folder / "labels.csv").write_text("file,label,split\na/0.png,a,train\na/1.png,b,test\nb/0.png,a,train\n")


def _shards(folder: Path) -> None:
    source = from_rows([{"text": text} for text in make_texts(20)], name="poems")
    encoding = load_encoding(write_vocabulary(folder.parent / "vocabulary-of-shards"))
    prepare_text(folder, source, encoding=encoding, shard_tokens=1000, validation=0.2, workers=1)


def _read_shards(folder: Path) -> object:
    shards = TokenShards(folder)
    shards.verify()
    return shards.read_windows(np.arange(1), 8)


def _packed(folder: Path) -> None:
    plain = write_shards(folder / "plain", train_0=np.arange(500))
    for path in plain.glob("*.bin"):
        (folder / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    plain.rmdir()


def _read_vision(folder: Path) -> object:
    found = open_vision_folder(folder / "model")
    return found and found.open_classifier(dataset=None, variant=None, device="cpu")


def _checkpoint(folder: Path) -> None:
    pretrain(tiny.spec(steps=4, decay_steps=8), folder / "run", device="cpu")


def _read_checkpoint(folder: Path) -> object:
    found = newest_checkpoint(folder / "run" / "checkpoints")
    if found is None:
        return None
    state = found.read_state()
    found.verify_files(state["files"])
    return lines_until(folder / "run" / "metrics.jsonl", found.step, state["metrics"] or None)


def _resume(folder: Path) -> object:
    return pretrain(tiny.spec(steps=5, decay_steps=8), folder / "run", device="cpu")


def _model(folder: Path) -> object:
    model = str(folder / "run" / "model")
    with loading(model):
        return load_language_model(model)


def _report(folder: Path) -> object:
    return write_report([TOY], folder / "runs", folder.with_name("report.html"))


def _results(folder: Path) -> object:
    return [one.results for one in open_runs(folder / "runs")]


def _toy(folder: Path) -> None:
    run(TOY, folder=folder / "runs", device="cpu", changes=TOY_CHANGES, seeds=(0,))


def _plain(name: str, data: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).parent.mkdir(exist_ok=True), (folder / name).write_text(data)]


READERS: dict[str, Reader] = {
    **{kind.lower(): Reader(lambda folder, kind=kind: _picture(folder, kind), _decode) for kind in FORMATS},  # type: ignore[misc]
    "idx": Reader(_idx, lambda folder: read_idx(("a", "b", "c"))(folder, "train")),
    "npz": Reader(_npz, lambda folder: read_packed(folder / "train.npz", 10)),
    "archive": Reader(_archive, lambda folder: read_archives({"train": "train.tar.xz"})(folder, "train")),
    "classes": Reader(_classes, lambda folder: class_folder(folder, size=8)),
    "pictures.json": Reader(_list, lambda folder: read_picture_list(folder / "pictures.json")),
    "labels.csv": Reader(_table, lambda folder: find_pictures(folder, folder / "labels.csv")),
    "sums": Reader(_plain("SHA256SUMS", f"{'ab' * 32}  a.bin\n"), lambda folder: read_sums(folder / "SHA256SUMS")),
    "text.gz": Reader(
        lambda folder: (folder / "a.txt.gz").write_bytes(gzip.compress(b"words\n" * 9)),
        lambda folder: read_text("a.txt", folder),
    ),
    "glue": Reader(_plain("sst2/train.tsv", SST2), lambda folder: load_glue("sst2", "train", folder, complete=False)),
    "shards": Reader(_shards, _read_shards),
    "packed": Reader(_packed, lambda folder: unpack_corpus(folder, folder / "out")),
    "texts": Reader(
        lambda folder: write_text_files(folder / "texts"),
        lambda folder: list(from_files([folder / "texts"]).documents),
    ),
    "vocabulary": Reader(write_vocabulary, load_encoding),
    "csv": Reader(_plain("plants.csv", TEXT), lambda folder: read_csv(folder / "plants.csv", target="kind")),
    "checkpoint": Reader(_checkpoint, _read_checkpoint),
    "resume": Reader(_checkpoint, _resume),
    "language model": Reader(_checkpoint, _model),
    "vision model": Reader(lambda folder: train_classifier(small.spec(epochs=1), folder, device="cpu"), _read_vision),
    "runs": Reader(_toy, _results),
    "report": Reader(_toy, _report),
}
"""By name. `read` must return, or raise an error that names what cannot be read."""
