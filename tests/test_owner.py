"""One owner per output folder, which no kill can leave behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harmax.owner import FolderInUseError, FolderOwner, holder
from harmax.train.language.train import pretrain
from harmax.train.vision.train import train_classifier
from train.language.tiny import lines, spec
from train.vision.small import spec as vision_spec

HOLD = """
import os, sys
from pathlib import Path
from harmax.owner import FolderOwner
owner = FolderOwner(Path(sys.argv[1]))
if len(sys.argv) > 2 and os.fork() == 0:
    sys.stdin.read()  # until the test ends, long after its parent
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def holding(folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start a process that holds a folder."""
    command = [sys.executable, "-c", HOLD, str(folder), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == f"{process.pid}\n"
    return process


@pytest.mark.parametrize("child", [(), ("and a child",)])
def test_a_second_process_is_told_who_holds_it_and_a_kill_frees_it(tmp_path: Path, child: tuple[str, ...]) -> None:
    folder = tmp_path / "run"
    with holding(folder, *child) as process:
        held = rf"run is in use by process {process.pid} on {socket.gethostname()}, since .*; wait until it ends, stop"
        with pytest.raises(FolderInUseError, match=held):
            pretrain(spec(), folder, device="cpu")
        assert [path.name for path in folder.iterdir()] == [".lock"]
        process.kill()
        process.wait()
        FolderOwner(folder).release()  # though a child of the killed one may still be there
        assert not (folder / ".lock").exists()


@pytest.mark.parametrize("task", ["language", "vision"])
def test_a_run_holds_its_folder_while_it_trains_and_gives_it_back(tmp_path: Path, task: str) -> None:
    found = []

    def look(record: dict[str, object]) -> None:
        if record["step"] == 1:
            found.append((tmp_path / "run" / ".lock").read_text())
            with pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()}"):
                pretrain(spec(), tmp_path / "run", device="cpu")

    if task == "language":
        pretrain(spec(steps=2), tmp_path / "run", device="cpu", progress=look)
    else:
        train_classifier(vision_spec(epochs=1), tmp_path / "run", device="cpu", progress=look)
    assert found[0].startswith(f"process {os.getpid()} on ")
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_stop_and_an_error_give_it_back(tmp_path: Path) -> None:
    def stop(record: dict[str, object]) -> None:
        if record["step"] == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pretrain(spec(), tmp_path / "run", device="cpu", progress=stop)
    with pytest.raises(ValueError, match="seed"):
        pretrain(spec(seed=1), tmp_path / "run", device="cpu")
    pretrain(spec(), tmp_path / "run", device="cpu")
    assert [line["step"] for line in lines(tmp_path / "run")] == [*range(1, 21)]


def test_a_run_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`data` must name a folder"):
        pretrain(spec(generated=False), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_lies_in_the_place_of_a_lock_is_refused_and_not_touched(tmp_path: Path, kind: str) -> None:
    lock, letters = tmp_path / "run" / ".lock", tmp_path / "letters.txt"
    lock.parent.mkdir()
    letters.write_text("not to be lost")
    match kind:
        case "link":
            lock.symlink_to(letters)
        case "folder":
            lock.mkdir()
        case _:
            os.mkfifo(lock)
    for ask in (FolderOwner, holder):
        with pytest.raises(OSError, match=r"\.lock must be an ordinary file, got a link, .*; delete it"):
            ask(lock.parent)
    assert letters.read_text() == "not to be lost"


def test_a_lock_of_another_machine_that_was_cut_short_means_nothing(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"process 12 on elsewh\xff\x00")
    assert holder(tmp_path) is None
    with FolderOwner(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_folder_that_is_deleted_or_locked_away_meanwhile_hides_no_error_and_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(record: dict[str, object]) -> None:
        if record["step"] == 5:
            shutil.rmtree(tmp_path / "deleted")

    with pytest.raises(
        OSError, match=r"deleted/metrics\.jsonl could not be written .*; make room, and the same command"
    ):
        pretrain(spec(), tmp_path / "deleted", device="cpu", progress=lose)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    owner = FolderOwner(tmp_path / "read-only")
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)  # as in a read-only folder, but also for root
        owner.release()
    FolderOwner(tmp_path / "read-only").release()


def test_what_a_kill_left_half_written_is_deleted(tmp_path: Path) -> None:
    pretrain(spec(steps=4, decay_steps=8), tmp_path, device="cpu")
    (tmp_path / ".lock").write_text("process 1 on nowhere, since yesterday\n")
    (tmp_path / ".abcd.partial").write_text('{"step": 1')
    (tmp_path / "checkpoints" / ".partial").mkdir()
    (tmp_path / "checkpoints" / ".removed").mkdir()
    pretrain(spec(steps=8), tmp_path, device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "metrics.jsonl", "model", "tokens"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000004", "step-00000008"]
