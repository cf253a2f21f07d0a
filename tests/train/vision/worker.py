"""What torchrun starts, two of them: several runs in a row, as importing takes longer than training.

Before the two train, the first one forks another that kills itself, and reads pictures with processes of its own.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file

from harmax.train.vision.data import open_images
from harmax.train.vision.train import train_classifier
from harmax.train.world import World
from train.vision.small import KILLED_AT, folder_spec, spec, write_pictures


def train_and_die(root: Path) -> None:
    def kill(record: dict[str, Any]) -> None:
        if record["step"] == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    del os.environ["WORLD_SIZE"]  # it trains alone
    train_classifier(spec(), root / "killed", device="cpu", progress=kill)


def fork_victim(root: Path) -> None:
    victim = mp.get_context("fork").Process(target=train_and_die, args=(root,))
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL


def read_with_workers(root: Path) -> None:
    """Keep the batches of an epoch that two processes decode."""
    folder = write_pictures(root / "pictures")
    data = open_images(folder_spec(folder, workers=2, epochs=1), World(0, 1, torch.device("cpu")))
    images, labels = map(torch.cat, zip(*data.train(2), strict=True))
    tests, targets = map(torch.cat, zip(*data.test(), strict=True))
    tensors = {"images": images, "labels": labels, "tests": tests, "targets": targets}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, root / "read.safetensors")


def train_two(root: Path) -> None:
    dist.init_process_group("gloo")
    train_classifier(spec(engine="ddp", auto_augment="cifar10"), root / "ddp", device="cpu")
    fields = dict(engine="ddp", micro_batch=16, head="linear")
    with suppress(KeyboardInterrupt):  # stopped early, for one process to go on with
        train_classifier(spec(**fields), root / "half", device="cpu", progress=stop_at_nine)
    dist.destroy_process_group()


def stop_at_nine(record: dict[str, Any]) -> None:
    if record["step"] == 9:
        signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    output = Path(sys.argv[1])
    torch.set_num_threads(1)
    if os.environ["RANK"] == "0":
        fork_victim(output)
        read_with_workers(output)
    train_two(output)
