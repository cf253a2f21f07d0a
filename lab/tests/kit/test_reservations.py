"""Processes that share a run compute every cell once, and a process that is killed holds nothing."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from demo import demo
from harmax.errors import DamagedError
from harmax_lab.kit.engine import Event, run
from harmax_lab.kit.reservations import Reservations

HOLD = """
import sys
from pathlib import Path
from harmax_lab.kit.reservations import Reservations
with Reservations(Path(sys.argv[1])) as reservations:
    print(reservations.take(sys.argv[2:]), flush=True)
    sys.stdin.read()
"""
SHARE = """
import sys
sys.path.insert(0, sys.argv[2])
from demo import demo
from harmax_lab.kit.engine import run
calls = []
sys.stdin.readline()
run(demo(calls), profile="full", folder=sys.argv[1])
print(*calls)
"""


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from demo import demo
from harmax_lab.kit.engine import run
replace = os.replace
def replace_or_die(source, target):
    if Path(target).name == "cells.json" and len(list(Path(sys.argv[1]).glob("demo/*/cells/*/done"))) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = replace_or_die
run(demo([]), folder=sys.argv[1])
"""


def process(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_run_waits_for_cells_of_another_process_and_takes_them_over_after_a_kill(tmp_path: Path) -> None:
    calls: list[str] = []
    folder = run(demo(calls), folder=tmp_path, cells="group=a").folder
    holder = process(HOLD, folder, "group=b,seed=0")
    assert holder.stdout is not None
    assert "group=b,seed=0" in holder.stdout.readline()
    messages = []

    def kill(event: Event) -> None:
        messages.append(event.message)
        if event.message.startswith("waiting"):
            holder.kill()
            holder.wait()

    calls.clear()
    result = run(demo(calls), folder=tmp_path, progress=kill)
    assert f"waiting for process {holder.pid} on" in " ".join(messages)
    assert calls == ["group=b,seed=1", "group=b,seed=0"]
    assert not result.pending
    holder.communicate()


def test_two_processes_compute_every_cell_once_and_store_the_same_run(tmp_path: Path) -> None:
    both = [process(SHARE, tmp_path / "shared", Path(__file__).parents[1]) for _ in range(2)]
    computed = Counter(name for one in both for name in one.communicate("go\n")[0].split())
    alone = run(demo([]), profile="full", folder=tmp_path / "alone")
    assert computed == Counter(list(alone.cells))
    shared = run(demo([]), profile="full", folder=tmp_path / "shared")
    assert shared.summary == alone.summary
    assert not shared.pending
    assert {name: result.arrays["x"].tolist() for name, result in shared.results.items()} == {
        name: result.arrays["x"].tolist() for name, result in alone.results.items()
    }


def test_reservations_end_with_their_owner(tmp_path: Path) -> None:
    with Reservations(tmp_path) as first, Reservations(tmp_path) as second:
        assert first.take(["a", "b"]) == ["a", "b"]
        assert second.take(["a", "b", "c"]) == ["c"]
        assert set(second.held_by_others(["a", "b", "c", "d"])) == {"a", "b"}
        assert first.take(["b", "c"]) == ["b"]
    with Reservations(tmp_path) as third:
        assert third.take(["a", "b", "c"]) == ["a", "b", "c"]


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    holder = process(HOLD, tmp_path)
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.kill()
    holder.communicate()
    assert any(path.is_dir() for path in (tmp_path / ".shared").iterdir())
    with Reservations(tmp_path) as living:
        living.take(["a"])
        (own,) = (path.name for path in (tmp_path / ".shared").iterdir() if path.is_dir())
    assert str(holder.pid) not in own
    assert not any(path.is_dir() for path in (tmp_path / ".shared").iterdir())


def test_what_a_kill_after_the_last_cell_left_is_swept_though_nothing_is_left_to_compute(tmp_path: Path) -> None:
    killed = process(KILLED, tmp_path, Path(__file__).parents[1])
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    (shared,) = tmp_path.glob("demo/*/.shared")
    assert len(list(shared.iterdir())) == 4, "the turn, the list, the process, and half a list"
    (shared.parent / "figures").mkdir()
    (shared.parent / "figures/.circle.png.abcdefgh.partial").touch()
    calls: list[str] = []
    run(demo(calls), folder=tmp_path)
    assert calls == []
    assert {path.name for path in shared.iterdir()} == {"turn", "cells.json"}
    assert not list((shared.parent / "figures").iterdir())


def test_a_damaged_list_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / ".shared").mkdir()
    (tmp_path / ".shared/cells.json").write_text("{")
    reservations = Reservations(tmp_path)
    with pytest.raises(DamagedError, match=r"cells.json cannot be read .*delete it once no other process"):
        reservations.take(["a"])
