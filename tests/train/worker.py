"""What torchrun starts, two of them: several runs in a row, as importing takes longer than training.

Before the two train, the first forks four that do, and one that kills itself.
"""

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist
import torch.multiprocessing as mp

from harmax.train.pretrain import pretrain
from train.tiny import KILLED_AT, spec


def train_two(root: Path) -> None:
    dist.init_process_group("gloo")
    train_both(root)
    pretrain(spec(engine="fsdp", head="linear", tied=False), root / "linear-fsdp2", device="cpu")
    for engine in ("ddp", "fsdp"):  # stopped early, for others to go on with
        pretrain(spec(engine=engine, steps=7, decay_steps=20), root / f"half-{engine}", device="cpu")
    fill_a_disk(root)
    dist.destroy_process_group()


def fill_a_disk(root: Path) -> None:
    """Let writing fail on the first process, which alone sees progress; the second writes down what it heard."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(record: dict[str, Any]) -> None:
        if record["step"] == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))

    try:
        pretrain(spec(engine="fsdp"), root / "full", device="cpu", progress=fill)
    except OSError as error:
        if dist.get_rank() == 1:
            (root / "full.txt").write_text(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fork_others(root: Path) -> None:
    mp.start_processes(train_four, (root,), nprocs=4, start_method="fork")
    victim = mp.get_context("fork").Process(target=train_and_die, args=(root,))
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL


def train_four(rank: int, root: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=rank, world_size=4)
    train_both(root)
    dist.destroy_process_group()


def train_both(root: Path) -> None:
    for engine in ("ddp", "fsdp"):
        pretrain(spec(engine=engine), root / f"{engine}{dist.get_world_size()}", device="cpu")


def train_and_die(root: Path) -> None:
    def kill(record: dict[str, Any]) -> None:
        if record["step"] == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    del os.environ["WORLD_SIZE"]  # it trains alone
    pretrain(spec(), root / "killed", device="cpu", progress=kill)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if os.environ["RANK"] == "0":
        fork_others(folder)
    train_two(folder)
