"""What torchrun starts, two of them: several runs in a row, as importing takes longer than training.

Before the two meet, the first one forks four others, which need not import anything again.
"""

import math
import os
import resource
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch.distributed as dist
import torch.multiprocessing as mp

from harmax.train.language.train import LanguageRecipe, pretrain
from harmax.train.loop import Training
from harmax.train.world import joined
from leaving import leave
from train.language.tiny import spec


def train_with_each(root: Path, *engines: str) -> None:
    for engine in engines:
        pretrain(spec(engine=engine), root / f"{engine}{dist.get_world_size()}", device="cpu")


def fork_four(root: Path) -> None:
    """Train on four processes, which find each other by a file."""
    forking = mp.get_context("fork")
    children = [forking.Process(target=train_among_four, args=(rank, root)) for rank in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4


def train_among_four(rank: int, root: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(root / "meeting"), 4), rank=rank, world_size=4)
    train_with_each(root, "ddp", "fsdp")
    pretrain(spec(engine="tp", n_head=4, steps=7, decay_steps=20), root / "four-then-two", device="cpu")
    leave()


def train_others(root: Path) -> None:
    pretrain(spec(engine="fsdp", head="linear", tied=False), root / "linear-fsdp2", device="cpu")
    for engine in ("ddp", "fsdp", "tp"):  # stopped early, for others to go on with
        pretrain(spec(engine=engine, steps=7, decay_steps=20), root / f"half-{engine}", device="cpu")
    pretrain(spec(engine="tp", head="linear"), root / "linear-tp", device="cpu")
    pretrain(spec(engine="tp", learn_exponent=True, steps=12), root / "learned-tp", device="cpu")
    pretrain(spec(engine="tp", n_head=4), root / "four-then-two", device="cpu")
    learned = {"engine": "fsdp", "learn_exponent": True}
    pretrain(spec(**learned, steps=12), root / "learned", device="cpu")
    pretrain(spec(**learned, steps=5, decay_steps=12), root / "learned-parts", device="cpu")
    pretrain(spec(**learned, steps=12), root / "learned-parts", device="cpu")


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


def have_too_few_heads(root: Path) -> None:
    """Start a run whose attention heads two processes cannot divide; each of them writes down what it heard."""
    try:
        pretrain(spec(engine="tp", n_head=1), root / "heads", device="cpu")
    except ValueError as error:
        (root / f"heads-{dist.get_rank()}.txt").write_text(str(error))


def spoil_a_shard(root: Path) -> None:
    """Let one process have a weight that is no number, before a checkpoint; the other writes down what it heard."""
    settings = spec(engine="fsdp", keep=1)
    with joined(settings, "cpu") as world:
        recipe = LanguageRecipe(settings, world)

        def spoil(record: dict[str, Any]) -> None:
            if record["step"] == 8:
                recipe.model.transformer.ln_f.weight.detach().to_local().fill_(math.nan)

        try:
            Training(recipe, root / "spoiled").run(spoil)
        except FloatingPointError as error:
            if world.rank == 1:
                (root / "spoiled.txt").write_text(str(error))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if os.environ["RANK"] == "0":
        fork_four(folder)
    dist.init_process_group("gloo")
    train_with_each(folder, "ddp", "fsdp", "tp")
    train_others(folder)
    fill_a_disk(folder)
    spoil_a_shard(folder)
    have_too_few_heads(folder)
    leave()
