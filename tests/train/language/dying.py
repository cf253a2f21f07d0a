"""What torchrun starts, two of them, and again after a kill: a process of each engine dies once, then all train on."""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from harmax.train import PretrainSpec
from harmax.train.language.train import LanguageRecipe, pretrain
from harmax.train.loop import Training
from harmax.train.world import World, joined, start_group
from leaving import leave
from train.language.tiny import spec

ENGINES = ("ddp", "fsdp", "tp")


class Dying(LanguageRecipe):
    """A recipe whose process is killed at a step, once."""

    def __init__(self, settings: PretrainSpec, world: World, *, step: int, rank: int, mark: Path) -> None:
        super().__init__(settings, world)
        self._dies, self._mark = step if rank == world.rank and not mark.exists() else 0, mark

    def update(self, step: int) -> Any:
        if step == self._dies:
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update(step)


def train(root: Path, engine: str, seed: int) -> None:
    chosen = random.Random(f"{engine} {seed}")
    settings = spec(engine=engine)
    step, rank = chosen.randint(2, settings.steps), chosen.randrange(2)
    with joined(settings, "cpu") as world:
        recipe = Dying(settings, world, step=step, rank=rank, mark=root / f"{engine} died")
        Training(recipe, root / f"killed-{engine}").run()


if __name__ == "__main__":
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    start_group(torch.device("cpu"))
    for name in ENGINES:
        train(folder, name, number)
        pretrain(spec(engine=name), folder / f"undisturbed-{name}", device="cpu")
    leave()
