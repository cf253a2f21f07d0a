"""`harmax data images` from a user's side: fetching, listing and checking, with and without internet."""

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harmax.cli.main import main
from harmax.data.images import IMAGES
from small_images import NAMES, small_mnist

Capture = pytest.CaptureFixture[str]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server that has a small data set under MNIST's name; returns its folder."""
    own = small_mnist(tmp_path / "served", monkeypatch)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HARMAX_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    handler = functools.partial(Quiet, directory=str(own))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setitem(IMAGES, "mnist", replace(IMAGES["mnist"], mirrors=(address,)))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield own
        server.shutdown()
        thread.join()


def images(*words: str | Path) -> int:
    return main(["data", "images", *map(str, words)])


def test_what_is_fetched_is_whole_and_not_fetched_twice(mirror: Path, tmp_path: Path, capsys: Capture) -> None:
    assert images("mnist", "--folder", "data") == 0
    printed = capsys.readouterr()
    assert printed.out == "data/mnist\n"
    assert [line.split(":")[0] for line in printed.err.splitlines()] == NAMES
    assert {path.name for path in Path("data/mnist").iterdir()} == set(NAMES)
    for path in mirror.iterdir():
        path.unlink()  # whatever it asked for now, it would not get
    assert images("mnist", "--folder", "data", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [{"name": "mnist", "folder": "data/mnist", "fetched": True}]
    assert printed.err == ""


@pytest.mark.usefixtures("mirror")
def test_the_folder_may_come_from_the_environment(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert images("mnist") == 2
    assert "name the folder to make with `--folder`" in capsys.readouterr().err
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / "new"))
    assert images("mnist") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'mnist'}\n"
    assert images("mnist", "--check") == 0
    assert "3 train, 2 test; 4 checksums right" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--list", "--check"])
def test_a_variable_that_names_no_folder_is_bad_usage(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setenv("HARMAX_DATA", str(tmp_path / "new"))
    assert images(flag, "mnist") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("harmax: `HARMAX_DATA` must name a folder, got '")
    assert images(flag, "mnist", "--folder", tmp_path) == (1 if flag == "--check" else 0)


def test_without_internet_the_files_are_listed_with_size_and_checksum(mirror: Path, capsys: Capture) -> None:
    for path in mirror.iterdir():
        path.unlink()
    assert images("mnist", "--folder", "data") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"harmax: {NAMES[0]} ")
    assert "http://127.0.0.1:" in lines[0]
    assert lines[1] == "Without internet, put these files into data/mnist by hand:"
    for line, file in zip(lines[2:], IMAGES["mnist"].files, strict=True):
        assert line.split() == [file.name, str(file.size), "bytes", "sha256", file.sha256]


@pytest.mark.usefixtures("mirror")
def test_another_form_is_left_alone(capsys: Capture) -> None:
    own = Path("data/mnist")
    own.mkdir(parents=True)
    for name in NAMES:
        (own / name.removesuffix(".gz")).write_bytes(b"anything")
    assert images("mnist", "--folder", "data") == 0
    printed = capsys.readouterr()
    assert printed.out == "data/mnist\n"
    assert "mnist is already there in another form" in printed.err
    assert not (own / NAMES[0]).exists()


def test_a_list_says_what_is_there_and_what_is_wanted(mirror: Path, capsys: Capture) -> None:
    assert images("--list", "--folder", mirror.parent) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert list(lines) == list(IMAGES)
    assert lines["digits"][0] == "embedded"
    assert lines["mnist"] == ["there", str(mirror)]
    assert lines["cifar10"][0] == "missing"
    assert "170.1" in lines["cifar10"]
    assert images("--list", "cifar100", "--folder", mirror.parent) == 0
    text = capsys.readouterr().out
    file = IMAGES["cifar100"].files[0]
    assert f"https://www.cs.toronto.edu/~kriz/{file.name}  {file.size:,} bytes  sha256 {file.sha256}" in text


def test_json_has_states_and_addresses(mirror: Path, capsys: Capture) -> None:
    assert images("--list", "mnist", "cifar10", "--json", "--folder", mirror.parent) == 0
    there, missing = json.loads(capsys.readouterr().out)
    assert (there["name"], there["state"], there["folder"], there["wanted"]) == ("mnist", "there", str(mirror), [])
    (wanted,) = missing["wanted"]
    assert wanted["sha256"] == IMAGES["cifar10"].files[0].sha256
    assert wanted["addresses"] == ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]


def test_a_check_fails_where_something_is_wrong(mirror: Path, capsys: Capture) -> None:
    root = mirror.parent
    assert images("--check", "mnist", "digits", "--folder", root) == 0
    assert "digits             embedded    1,437 train, 360 test" in capsys.readouterr().out
    assert images("--check", "mnist", "cifar10", "--folder", root) == 1  # asked for by name, and not there
    (mirror / NAMES[0]).write_bytes(b"something else")
    capsys.readouterr()
    assert images("--check", "mnist", "--folder", root) == 1
    text = capsys.readouterr().out
    assert text.startswith("mnist              damaged")
    assert f"{NAMES[0]} must have the sha256 {IMAGES['mnist'].files[0].sha256} (as published), got" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "NAME, `--list` or `--check` must be given, got none"),
        (["mnst"], "did you mean 'mnist'?"),
        (["digits"], "`NAME` must be one of mnist, fashion_mnist, cifar10, cifar100, got 'digits'"),
        (["--list", "--check"], "`--list` and `--check` must not be given together, got both"),
        (["mnist", "--folder", "afile"], "must be a folder, got 'afile'"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").touch()
    assert images(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("harmax: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
