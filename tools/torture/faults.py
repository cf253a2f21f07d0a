"""Kills, pairs of processes, full disks and lost power: afterwards every task ends with the bits of a run alone."""

import os
import random
import resource
import signal
import time
from pathlib import Path

from lost_power import Disk
from torture import children
from torture.works import bench

IN_USE = "FolderInUseError"


def kill(name: str, seed: int) -> str | None:
    """Kill the work once, and half of the times once more, and resume."""
    chosen, here = random.Random(seed), bench(name)
    with here.place() as folder:
        for _ in range(chosen.choice((1, 2))):
            words = children.killed(folder, lambda: here.task.work(folder), here.root / "said", chosen, here.size)
            if words:
                return f"it failed before it was killed: {words}"
        return here.finish(folder)


def pair(name: str, seed: int) -> str | None:
    """Do the same work in two processes at once, and kill one of them in half of the cases."""
    chosen, here = random.Random(seed), bench(name)
    operations, seconds = here.size
    dies, last = chosen.random() < 0.5, chosen.randint(1, operations)

    def kill(count: int) -> None:
        if dies and count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    with here.place() as folder:
        works = [lambda: here.task.work(folder), children.watching(folder, lambda: here.task.work(folder), kill)]
        chosen.shuffle(works)
        said = [here.root / "said-1", here.root / "said-2"]
        numbers = [children.start(works[0], said[0])]
        time.sleep(chosen.choice((0, 0, chosen.uniform(0, seconds))))
        numbers.append(children.start(works[1], said[1]))
        ended = [children.end(number, note) for number, note in zip(numbers, said, strict=True)]
        wrong = [one.words for one in ended if one.words and IN_USE not in one.words]
        if wrong:
            return f"a process of the pair failed: {wrong[0]}"
        return here.finish(folder)


def full_disk(name: str, seed: int) -> str | None:
    """Let no file grow beyond a random size, then go on without the limit."""
    chosen, here = random.Random(seed), bench(name)
    sizes = [path.stat().st_size for path in (here.root / "undisturbed").rglob("*") if path.is_file()]
    most = round(chosen.choice(sizes) * chosen.uniform(0.01, 1.2))

    def starved(folder: Path) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            here.task.work(folder)
        finally:  # so that the error itself can be written down
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with here.place() as folder:
        ended = children.run(lambda: starved(folder), here.root / "said")
        if ended.words:
            last = ended.words.strip().splitlines()[-1]
            if "Error" not in ended.words or str(folder) not in ended.words.rpartition("Traceback")[2]:
                return f"a full disk ({most} bytes) does not name a path: {last}"
            if "SafetensorError:" in last or "RuntimeError:" in last:
                return f"a full disk ({most} bytes) gives a raw error: {last}"
        return here.finish(folder)


def lose_power(name: str, seed: int) -> str | None:
    """Lose all that was not synced after a random sync, and go on with what the disk holds."""
    chosen, here = random.Random(seed), bench(name)
    last = chosen.randint(1, max(2, here.size[0] // 3))
    with here.place() as folder:
        before, after = folder / "before", folder / "after"
        before.mkdir(parents=True)
        if (vocabulary := here.root / "vocabulary").exists():
            (folder / "vocabulary").symlink_to(vocabulary)

        def work() -> None:
            with Disk(before) as disk:
                note, count = os.fsync, 0

                def counted(handle: int) -> None:
                    nonlocal count
                    note(handle)
                    count += 1
                    if count == last:
                        disk.restore(after)
                        os.kill(os.getpid(), signal.SIGKILL)

                os.fsync = counted
                here.task.work(before)
                disk.restore(after)

        ended = children.run(work, here.root / "said")
        if ended.words:
            return f"it failed before power was lost: {ended.words}"
        return here.finish(after)
