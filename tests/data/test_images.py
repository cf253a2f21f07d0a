"""Image data sets: every packing is read to the byte, and whatever is damaged or missing is named."""

import gzip
import hashlib
import http.server
import io
import struct
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harmax.data.folder import find_data
from harmax.data.images import IMAGES, class_folder, download, has_images, load_images
from harmax.data.images.source import RemoteFile
from harmax.errors import EXTRAS, DamagedError, MissingExtraError
from small_images import small_mnist


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(root: Path, images: bytes, labels: bytes, *, packed: bool = False, name: str = "mnist") -> Path:
    (root / name).mkdir()
    for kind, data in (("images-idx3", images), ("labels-idx1", labels)):
        path = root / name / f"train-{kind}-ubyte{'.gz' * packed}"
        path.write_bytes(gzip.compress(data) if packed else data)
    return root


PIXELS, LABELS = draw(3, 5, 4), np.array([7, 0, 9], np.uint8)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "last"), [("mnist", "9"), ("fashion_mnist", "Ankle boot")])
def test_idx_files_are_read_plain_and_packed(tmp_path: Path, packed: bool, name: str, last: str) -> None:
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS), packed=packed, name=name)
    found = load_images(name, "train", tmp_path, complete=False)
    np.testing.assert_array_equal(found.pixels, PIXELS)
    assert found.labels.tolist() == [7, 0, 9]
    assert found.labels.dtype == np.int64
    assert found.classes[found.labels[2]] == last


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(PIXELS)[:-1], idx(LABELS), r"train-images-idx3-ubyte must have 76 bytes .* \(3, 5, 4\), got 75"),
        (idx(PIXELS) + b"!", idx(LABELS), "got 77; it is cut off or padded"),
        (idx(LABELS), idx(LABELS), "magic number 00000803 .* got 00000801"),
        (b"", idx(LABELS), "magic number 00000803 .* got nothing"),
        (idx(PIXELS)[:9], idx(LABELS), "16 bytes of header, got 9"),
        (idx(PIXELS), idx(LABELS[:2]), "as many images as labels, got 3 and 2"),
        (idx(PIXELS), idx(np.array([1, 10, 2], np.uint8)), "labels from 0 to 9, got 10 for image 1"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, images: bytes, labels: bytes, message: str) -> None:
    write_mnist(tmp_path, images, labels)
    with pytest.raises(DamagedError, match=message):
        load_images("mnist", "train", tmp_path, complete=False)


def test_half_a_gzip_file_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, idx(draw(9, 28, 28)), idx(LABELS), packed=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedError, match="whole gzip file"):
        load_images("mnist", "train", tmp_path, complete=False)


def test_a_part_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS))
    with pytest.raises(DamagedError, match=r"60,000 images in its train split, got 3 .* complete=False"):
        load_images("mnist", "train", tmp_path)


def test_missing_files_are_named_with_sizes_and_checksums(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        load_images("mnist", "train", tmp_path)
    for word in (
        str(tmp_path),
        "t10k-labels-idx1-ubyte.gz (4,542 bytes, sha256 f7ae60f9",
        "`harmax data images mnist --folder",
    ):
        assert word in str(error.value)
    write_mnist(tmp_path, idx(PIXELS), idx(LABELS))
    assert not has_images("mnist", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz must lie in"):
        load_images("mnist", "test", tmp_path)


def test_without_a_data_folder_its_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARMAX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # where there is no ../shared/data
    with pytest.raises(FileNotFoundError, match="set HARMAX_DATA"):
        load_images("mnist")
    assert not has_images("mnist")


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_variable_that_names_no_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / name))
    for look in (find_data, lambda: has_images("mnist"), lambda: load_images("mnist")):
        with pytest.raises(ValueError, match=rf"`HARMAX_DATA` must name a folder, got '.*/{name}'; correct it"):
            look()
    assert has_images("digits")
    assert not has_images("mnist", tmp_path)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        load_images("mnst")
    with pytest.raises(ValueError, match="`split` must be one of train, test, got 'val'"):
        load_images("mnist", "val")
    with pytest.raises(ValueError, match="`name` must be"):
        download("digits", "nowhere")


CIFARS = {"cifar10": (1, 10), "cifar100": (2, 100)}
BATCHES = {"cifar10": [f"data_batch_{number}.bin" for number in range(1, 6)], "cifar100": ["train.bin"]}
UNPACKED = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}


def cifar_batches(name: str) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """Write two images a batch, record by record; the coarse label, where there is one, is always 3."""
    label_bytes, classes = CIFARS[name]
    count = 2 * len(BATCHES[name])
    pixels, labels = draw(count, 32, 32, 3), np.arange(count) * 7 % classes
    records = [
        bytes([3] * (label_bytes - 1) + [label]) + b"".join(image[..., channel].tobytes() for channel in range(3))
        for image, label in zip(pixels, labels, strict=True)
    ]
    return [b"".join(records[start : start + 2]) for start in range(0, count, 2)], pixels, labels


@pytest.mark.parametrize("form", ["plain", "unpacked", "archive"])
@pytest.mark.parametrize("name", CIFARS)
def test_cifar_batches_are_read_in_every_form(tmp_path: Path, name: str, form: str) -> None:
    batches, pixels, labels = cifar_batches(name)
    own = tmp_path / name / (UNPACKED[name] if form == "unpacked" else "")
    own.mkdir(parents=True)
    files = dict(zip(BATCHES[name], batches, strict=True))
    if form == "archive":
        write_tar(
            own / f"{name.replace('r', 'r-')}-binary.tar.gz", {f"{UNPACKED[name]}/{n}": d for n, d in files.items()}
        )
    else:
        for file, data in files.items():
            (own / file).write_bytes(data)
    found = load_images(name, "train", tmp_path, complete=False)
    np.testing.assert_array_equal(found.pixels, pixels)
    np.testing.assert_array_equal(found.labels, labels)
    assert len(found.classes) == CIFARS[name][1]


def test_half_an_image_and_wrong_labels_are_refused(tmp_path: Path) -> None:
    own = tmp_path / "cifar100"
    own.mkdir()
    data = cifar_batches("cifar100")[0][0]
    (own / "train.bin").write_bytes(data[:-1])
    with pytest.raises(DamagedError, match=r"train.bin must hold whole images of 3074 bytes, got 6,147"):
        load_images("cifar100", "train", tmp_path, complete=False)
    (own / "train.bin").write_bytes(bytes([0, 200]) + data[2:])
    with pytest.raises(DamagedError, match="labels from 0 to 99, got 200 for image 0"):
        load_images("cifar100", "train", tmp_path, complete=False)


@pytest.mark.parametrize(
    ("name", "there"), [("cifar10", "cifar-10-batches-py/data_batch_1"), ("cifar100", "cifar-100-python/train")]
)
def test_pickled_cifar_is_refused(tmp_path: Path, name: str, there: str) -> None:
    path = tmp_path / name / there
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match=r"binary version, cifar-10+-binary.tar.gz, got .* pickle"):
        load_images(name, "train", tmp_path)


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def write_packed(path: Path, images: list[bytes], labels: list[int], **changes: np.ndarray) -> None:
    arrays = {
        "blob": np.frombuffer(b"".join(images), np.uint8),
        "off": np.cumsum([0, *map(len, images)]).astype(np.uint32),
        "label": np.array(labels, np.uint8),
        "classes": np.array([f"class {number}" for number in range(10)]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{**arrays, **changes})  # type: ignore[arg-type]


def test_packed_cifar_joins_its_parts_in_order(tmp_path: Path) -> None:
    pixels = draw(3, 32, 32, 3)
    images = [encoded(image, "WEBP") for image in pixels]
    write_packed(tmp_path / "cifar10" / "train-b.npz", images[2:], [4])
    write_packed(tmp_path / "cifar10" / "train-a.npz", images[:2], [9, 1])
    found = load_images("cifar10", "train", tmp_path, complete=False)
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found.labels.tolist() == [9, 1, 4]
    assert found.classes[9] == "class 9"


def test_damaged_packings_are_refused(tmp_path: Path) -> None:
    path, image = tmp_path / "cifar10" / "train.npz", encoded(draw(32, 32, 3), "WEBP")
    damages: list[tuple[dict[str, np.ndarray], str]] = [
        ({"off": np.array([0, 3], np.uint32)}, "an offset an image"),
        ({"label": np.array([10], np.uint8)}, "labels from 0 to 9, got 10"),
        ({"blob": np.zeros(len(image), np.uint8)}, "image 0 of .*train.npz must be a whole picture"),
    ]
    for changes, message in damages:
        write_packed(path, [image], [0], **changes)
        with pytest.raises(DamagedError, match=message):
            load_images("cifar10", "train", tmp_path, complete=False)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DamagedError, match=r"whole .npz"):
        load_images("cifar10", "train", tmp_path, complete=False)


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    mode = "w" if path.suffix == ".tar" else f"w:{path.suffix[1:]}"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # its modes are literals
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


OWLS, CATS = draw(2, 6, 6, 3, seed=1), draw(1, 6, 6, 3, seed=2)
TREE = {
    "owl/b.png": encoded(OWLS[1]),
    "owl/a.png": encoded(OWLS[0]),
    "cat/x.png": encoded(CATS[0]),
    "owl/notes.txt": b"-",
}


def write_tree(root: Path, files: dict[str, bytes], form: str) -> Path:
    path = root / form
    if form == "folder":
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    else:
        root.mkdir(exist_ok=True)
        write_tar(path, files)
    return path


@pytest.mark.parametrize("form", ["folder", "set.tar", "set.tar.xz", "set.tar.gz"])
def test_class_folders_are_sorted_and_decoded(tmp_path: Path, form: str) -> None:
    files = TREE if form == "folder" else {f"train/{name}": data for name, data in TREE.items()}
    found = class_folder(write_tree(tmp_path, files, form))
    assert found.classes == ("cat", "owl")
    assert found.labels.tolist() == [0, 1, 1]
    assert len(found) == 3
    image, label = found[1]
    np.testing.assert_array_equal(image, OWLS[0])
    assert label == 1
    assert "b.png" in found.name(2)
    np.testing.assert_array_equal(found.to_images().pixels, np.concatenate([CATS, OWLS]))


@pytest.mark.parametrize("form", ["folder", "set.tar", "set.tar.xz"])
def test_a_digest_is_of_names_and_sizes_wherever_the_pictures_lie(tmp_path: Path, form: str) -> None:
    whole = class_folder(write_tree(tmp_path / "one", TREE, form)).digest()
    turned = dict(reversed(TREE.items()))
    assert class_folder(write_tree(tmp_path / "two", turned, form)).digest() == whole
    assert class_folder(write_tree(tmp_path / "plain", TREE, "folder")).digest() == whole
    others = {
        "larger": {**TREE, "owl/b.png": TREE["owl/b.png"] + b"!"},
        "renamed": {name.replace("b.png", "c.png"): data for name, data in TREE.items()},
        "relabelled": {name.replace("owl/a", "cat/y"): data for name, data in TREE.items()},
        "reclassed": {name.replace("owl", "emu"): data for name, data in TREE.items()},
    }
    found = {name: class_folder(write_tree(tmp_path / name, files, form)).digest() for name, files in others.items()}
    assert len({whole, *found.values()}) == 5


def test_pictures_are_decoded_when_they_are_asked_for_and_damage_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "owl"
    folder.mkdir()
    (folder / "a.png").write_bytes(encoded(OWLS[0]))
    (folder / "b.png").write_bytes(encoded(draw(64, 64, 3))[:4000])
    (folder / "c.jpg").write_bytes(b"no picture at all")
    found = class_folder(tmp_path)
    np.testing.assert_array_equal(found[0][0], OWLS[0])
    with pytest.raises(DamagedError, match=r"owl/b.png must be a whole picture"):
        found[1]
    with pytest.raises(DamagedError, match=r"owl/c.jpg must be a whole picture, got 17 bytes"):
        found[2]


def test_pictures_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    (tmp_path / "owl").mkdir()
    striped = np.zeros((8, 24, 3), np.uint8)
    striped[:, 8:16] = 200  # the middle square
    (tmp_path / "owl" / "a.png").write_bytes(encoded(striped))
    (tmp_path / "owl" / "b.png").write_bytes(encoded(OWLS[0]))
    with pytest.raises(ValueError, match=r"\(8, 24\) and then \(6, 6\) for .*b.png; pass `size`"):
        class_folder(tmp_path).to_images()
    pixels = class_folder(tmp_path, size=8).to_images().pixels
    assert pixels.shape == (2, 8, 8, 3)
    assert (pixels[0] == 200).all()


def test_folders_without_classes_and_broken_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(OWLS[0]))
    with pytest.raises(ValueError, match="one sub-folder a class, got none"):
        class_folder(tmp_path)
    with pytest.raises(ValueError, match="`path` must be a folder or one of"):
        class_folder(tmp_path / "a.png")
    with pytest.raises(FileNotFoundError, match="not there"):
        class_folder(tmp_path / "nowhere")
    write_tar(tmp_path / "set.tar.xz", TREE)
    (tmp_path / "set.tar.xz").write_bytes((tmp_path / "set.tar.xz").read_bytes()[:300])
    with pytest.raises(DamagedError, match=r"set.tar.xz must be a whole archive"):
        class_folder(tmp_path / "set.tar.xz")


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owl").mkdir()
    (tmp_path / "owl" / "a.png").write_bytes(encoded(OWLS[0]))
    monkeypatch.setitem(EXTRAS, "vision", ("PIL",))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"harmax\[vision\]"):
        class_folder(tmp_path)[0]


def test_digits_need_no_folder_and_are_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / "nowhere"))
    sides = [load_images("digits", split) for split in ("train", "test")]
    bundle = load_digits()
    pixels = np.concatenate([side.pixels for side in sides])
    np.testing.assert_array_equal(np.rint(pixels * (16 / 255)), bundle.images)
    np.testing.assert_array_equal(np.concatenate([side.labels for side in sides]), bundle.target)
    assert [len(side.labels) for side in sides] == [1437, 360]
    assert pixels.max() == 255


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves one file, from anywhere in it; not under /none/, and under /short/ it hangs up half-way."""

    data = draw(5000).tobytes()
    asked: tuple[tuple[str, str | None], ...] = ()

    def do_GET(self) -> None:
        cls, wanted = type(self), self.headers.get("Range")
        cls.asked = (*cls.asked, (self.path, wanted))
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if self.path.startswith("/none/"):
            self.send_error(404)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(self.data) - start))
        self.end_headers()
        self.wfile.write(self.data[start : 2000 if "/short/" in self.path else None])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[str]:
    Mirror.asked = ()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def offer(
    monkeypatch: pytest.MonkeyPatch, *mirrors: str, sha256: str = hashlib.sha256(Mirror.data).hexdigest()
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    file = RemoteFile("file.bin", len(Mirror.data), sha256)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], files=(file,), mirrors=mirrors))


def test_download_goes_on_where_it_was_cut_off_and_fetches_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str
) -> None:
    offer(monkeypatch, f"{mirror}/none/", f"{mirror}/short/", f"{mirror}/good/")
    heard = []
    own = download("mnist", tmp_path, progress=lambda name, there, total: heard.append((name, there, total)))
    assert (own / "file.bin").read_bytes() == Mirror.data
    assert [path.name for path in own.iterdir()] == ["file.bin"]
    assert heard[-1] == ("file.bin", 5000, 5000)
    assert Mirror.asked == (("/none/file.bin", None), ("/short/file.bin", None), ("/good/file.bin", "bytes=2000-"))
    download("mnist", tmp_path)
    assert len(Mirror.asked) == 3


def test_a_wrong_checksum_is_no_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    offer(monkeypatch, f"{mirror}/good/", sha256="0" * 64)
    with pytest.raises(
        ConnectionError, match=r"5,000 bytes of another checksum.*\n.*by hand:\n  file.bin +5,000 bytes"
    ):
        download("mnist", tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_without_internet_the_files_wanted_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "http://127.0.0.1:9/")  # nobody listens there
    with pytest.raises(ConnectionError, match=r"Without internet, put these files into .*mnist by hand:\n  file.bin"):
        download("mnist", tmp_path)


def test_a_download_that_failed_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    system = small_mnist(tmp_path / "system", monkeypatch)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], elsewhere=(str(system),)))
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    for address in ("http://127.0.0.1:9/", f"{mirror}/none/", f"{mirror}/short/"):
        offer(monkeypatch, address)
        with pytest.raises(ConnectionError):
            download("mnist", tmp_path)
        assert (tmp_path / "mnist").exists() == address.endswith("/short/")  # it left what it had
        assert has_images("mnist")
        assert len(load_images("mnist", "train").labels) == 3
    assert not has_images("mnist", tmp_path)


def real(name: str) -> pytest.MarkDecorator:
    folder = find_data()
    missing = folder is None or not has_images(name, folder)
    return pytest.mark.skipif(missing, reason=f"{name} is not in the data folder")


@real("mnist")
def test_mnist_is_the_published_one() -> None:
    train, test = load_images("mnist", "train"), load_images("mnist", "test")
    assert np.bincount(train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    digest = hashlib.sha256(train.pixels[0].tobytes()).hexdigest()
    assert digest == "23ceaef5eb61f0e70d64ac18fdf0f60df3d5971cf30bbadac7b6ebf07f782d2c"
    assert round(float(train.pixels.mean(dtype=np.float64) / 255), 4) == 0.1307


@real("cifar10")
def test_the_packed_cifar_10_test_set_is_whole() -> None:
    found = load_images("cifar10", "test")
    assert found.pixels.shape == (10000, 32, 32, 3)
    assert np.bincount(found.labels).tolist() == [1000] * 10
    assert found.classes[0] == "airplane"
    assert (
        hashlib.sha256(found.pixels[0].tobytes()).hexdigest()
        == "5c55cb6e40aa37b458b2e0de4a3adee984c59704a0e731175d52f1860615c7ad"
    )


@real("imagenet_sample64")
def test_the_imagenet_sample_has_one_picture_a_class() -> None:
    found = load_images("imagenet_sample64", "train")
    assert found.pixels.shape == (1000, 64, 64, 3)
    np.testing.assert_array_equal(found.labels, np.arange(1000))
    assert found.classes[0] == "n01440764"
    assert (
        hashlib.sha256(found.pixels[0].tobytes()).hexdigest()
        == "b0df5f6eaaa64a2e52fa80e08885c3905533e2830489cba87fd9f1c47286acc0"
    )
