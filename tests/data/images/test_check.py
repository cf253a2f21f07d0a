"""What is said of data sets that are whole, a part, damaged, incomplete or not there."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from harmax.data.folder import find_data
from harmax.data.images import IMAGES, check_images, has_images
from harmax.errors import DamagedError
from small_images import NAMES, small_mnist


def test_a_whole_set_has_its_checksums_and_all_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_mnist(tmp_path, monkeypatch)
    found = check_images("mnist", tmp_path)
    assert (found.state, found.folder, found.counts) == ("whole", own, {"train": 3, "test": 2})
    assert sorted(found.checked) == sorted(NAMES)
    assert found.problems == found.wanted == ()
    quick = check_images("mnist", tmp_path, read=False)
    assert (quick.state, quick.counts, quick.checked) == ("there", {}, ())


def test_fewer_images_than_published_are_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_mnist(tmp_path, monkeypatch, published={"train": 3, "test": 9})
    found = check_images("mnist", tmp_path)
    assert (found.state, found.counts["test"]) == ("part", 2)


def test_a_changed_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_mnist(tmp_path, monkeypatch)
    data = gzip.decompress((own / NAMES[1]).read_bytes())
    (own / NAMES[1]).write_bytes(gzip.compress(data[:-1] + b"\7"))  # it can be read: only the checksum tells
    found = check_images("mnist", tmp_path)
    assert found.state == "damaged"
    (problem,) = found.problems
    assert f"{NAMES[1]} must have the sha256 " in problem
    assert "(as published), got " in problem
    assert sorted(found.checked) == sorted({*NAMES} - {NAMES[1]})


def test_an_unreadable_file_without_a_checksum_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_mnist(tmp_path, monkeypatch)
    for name in NAMES:
        data = gzip.decompress((own / name).read_bytes())
        (own / name).unlink()
        (own / name.removesuffix(".gz")).write_bytes(data)
    assert check_images("mnist", tmp_path).state == "whole"
    (own / "train-labels-idx1-ubyte").write_bytes(b"nothing")
    found = check_images("mnist", tmp_path)
    assert found.state == "damaged"
    assert "magic number" in found.problems[0]


def test_files_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_mnist(tmp_path, monkeypatch)
    (own / NAMES[2]).unlink()
    found = check_images("mnist", tmp_path)
    assert (found.state, found.wanted) == ("incomplete", (NAMES[2],))
    missing = check_images("mnist", tmp_path / "nowhere")
    assert (missing.state, sorted(missing.wanted), missing.folder) == ("missing", sorted(NAMES), None)


def test_a_list_of_checksums_in_the_data_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_mnist(tmp_path, monkeypatch)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], files=()))
    assert check_images("mnist", tmp_path).checked == ()
    digest = hashlib.sha256((own / NAMES[0]).read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  mnist/{NAMES[0]}\n{'0' * 64} *elsewhere/{NAMES[1]}\n")
    assert check_images("mnist", tmp_path).checked == (NAMES[0],)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64} *mnist/{NAMES[0]}\n")
    found = check_images("mnist", tmp_path)
    assert found.state == "damaged"
    assert "SHA256SUMS), got " in found.problems[0]


def test_a_system_packages_own_packing_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_mnist(tmp_path / "system", monkeypatch)
    wrong = tuple(replace(file, sha256="0" * 64) for file in IMAGES["mnist"].files)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], files=wrong, elsewhere=(str(own),)))
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path))
    found = check_images("mnist")
    assert (found.state, found.folder, found.checked) == ("whole", own, ())


def test_digits_are_embedded_and_names_are_checked() -> None:
    assert check_images("digits", read=False).state == "embedded"
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        check_images("mnst")


@pytest.mark.skipif(find_data() is None or not has_images("mnist"), reason="mnist is not in the data folder")
def test_the_data_folders_mnist_is_the_published_one() -> None:
    found = check_images("mnist")
    assert (found.state, len(found.checked), found.counts) == ("whole", 4, {"train": 60_000, "test": 10_000})


def test_upper_case_checksums_count_and_other_lines_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_mnist(tmp_path, monkeypatch)
    monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], files=()))
    digest = hashlib.sha256((own / NAMES[0]).read_bytes()).hexdigest().upper()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  mnist/{NAMES[0]}\n")
    assert check_images("mnist", tmp_path).checked == (NAMES[0],)
    (tmp_path / "SHA256SUMS").write_text("word\n")
    with pytest.raises(DamagedError, match=r"SHA256SUMS must have .*'word' in line 1"):
        check_images("mnist", tmp_path)
