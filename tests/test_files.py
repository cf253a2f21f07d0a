"""Files: JSON that is standard, writes that are whole, errors that name the path."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from harmax.errors import DamagedError
from harmax.files import ABANDONED_SECONDS, from_json, read_json, read_whole, to_json, write_atomically, write_json


def test_json_keeps_what_is_not_finite(tmp_path: Path) -> None:
    value = {"loss": [1.5, math.inf, -math.inf, math.nan], "steps": np.int64(3), "name": "run"}
    write_json(tmp_path / "value.json", value)
    for back in (read_json(tmp_path / "value.json"), from_json(to_json(value))):
        assert back["loss"][:3] == [1.5, math.inf, -math.inf]
        assert math.isnan(back["loss"][3])
        assert (back["steps"], back["name"]) == (3, "run")


def test_a_string_that_would_come_back_as_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="'NaN'"):
        to_json({"name": "NaN"})


@pytest.mark.parametrize("text", ["{", "\xff", "[" * 100_000])
def test_damaged_json_is_named_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(DamagedError, match=f"{path} is missing"):
        read_json(path)
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DamagedError, match=f"{path} cannot be read"):
        read_json(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to itself"])
def test_what_may_block_for_ever_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(path)
    for read in (read_json, read_whole):
        with pytest.raises((DamagedError, OSError), match=r"config\.json"):
            read(path)


def test_a_file_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, 100 * 2**30)  # which occupies nothing on the disk
    for read in (read_json, read_whole):
        with pytest.raises(
            DamagedError, match=r"config\.json must have at most 268,435,456 bytes, got 107,374,182,400"
        ):
            read(path)


def test_a_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "data.bin"
    for data in (b"first, and longer", b"second"):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert [found.name for found in path.parent.iterdir()] == ["data.bin"]
    assert path.stat().st_mode & 0o777 == 0o644


FULL = """
import resource, sys
from pathlib import Path
from harmax.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
write_atomically(Path(sys.argv[1]), bytes(5000))
"""


def test_a_full_disk_is_reported_with_the_path_and_leaves_the_old_file(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"File too large: '{path}'" in done.stderr
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"data.bin": b"old"}


KILLED = """
import os, signal, sys
from pathlib import Path
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
from harmax.files import write_atomically
write_atomically(Path(sys.argv[1]), b"new")
"""


def test_what_a_killed_process_left_is_removed_by_a_later_write(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode < 0
    assert len(list(tmp_path.glob(".data.bin.*.partial"))) in (1, 2)
    other = tmp_path / ".other.bin.xyz.partial"
    other.touch()
    os.utime(other, (time.time() - 2 * ABANDONED_SECONDS,) * 2)
    write_atomically(path, b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, other])


WRITING = """
import os, sys
from pathlib import Path
replace = os.replace
def wait(*paths):
    print("ready", flush=True)
    sys.stdin.readline()
    replace(*paths)
os.replace = wait
from harmax.files import write_atomically
write_atomically(Path(sys.argv[1]), b"theirs")
"""


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    command = [sys.executable, "-c", WRITING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (theirs,) = tmp_path.glob(".data.bin.*.partial")
        write_atomically(path, b"ours")
        assert theirs.exists()
        process.communicate("go\n")
    assert process.returncode == 0
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"data.bin": b"theirs"}
