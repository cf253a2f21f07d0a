"""The one place where it is decided, and verified, from where a run continues."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harmax.errors import DamagedError
from harmax.train import old_checkpoint
from harmax.train.checkpoint import (
    STATE,
    Checkpoint,
    clear_leftovers,
    newest_checkpoint,
    random_states,
    read_tensors,
    set_random_states,
)
from harmax.train.metrics import MetricsFile, lines_until
from harmax.train.recipe import Recipe

CHECKPOINTS, METRICS = "checkpoints", "metrics.jsonl"


@dataclass(frozen=True)
class Resumed:
    """A recipe that is ready for its next step."""

    step: int
    """Updates done: 0 for a new run."""
    data: dict[str, str]
    """A checksum per split of the data."""
    metrics: MetricsFile | None
    """On the first process."""
    cautions: tuple[str, ...]
    """What to know about the resumed run."""


def resume(recipe: Recipe, output: Path, *, change_schedule: bool = False) -> Resumed:
    """Open the data, build the model, and continue from the newest checkpoint of a folder where it has one.

    Raises ValueError where checkpoint and recipe do not belong together, DamagedError where a file is missing or not
    what was written. Both say what to do; nothing is deleted then.

    Args:
        recipe: what to train.
        output: the run's folder, which this process owns.
        change_schedule: whether the fields in `recipe.alterable` may differ from the checkpoint's.
    """
    folder, world = output / CHECKPOINTS, recipe.world
    world.lead(lambda: _clear(output))
    checkpoint = newest_checkpoint(folder)
    state: dict[str, Any] = {}
    if checkpoint is not None:
        state = checkpoint.read_state()
        _check_spec(checkpoint, state, recipe, change_schedule)
    data = recipe.open_data(output)
    if checkpoint is not None:
        _check_data(checkpoint, state["data"], data)
        world.lead(lambda: checkpoint.verify_files(state["files"]))
        if checkpoint.step < recipe.steps:
            world.lead(recipe.verify_data)
    recipe.build()
    if checkpoint is None:
        recipe.start(None)
    else:
        _load(checkpoint, state, recipe)
    step = 0 if checkpoint is None else checkpoint.step
    kept: list[tuple[bytes, str | None]] = []
    world.lead(lambda: kept.append(lines_until(output / METRICS, step, state.get("metrics") or None)))
    metrics = MetricsFile(output / METRICS, kept[0][0]) if world.leads else None
    return Resumed(step, data, metrics, tuple(caution for _, caution in kept if caution))


def _clear(output: Path) -> None:
    clear_leftovers(output / CHECKPOINTS)
    for path in output.glob(".*.partial"):  # of files that a kill caught half written
        if path.is_file():
            path.unlink()


def _check_spec(checkpoint: Checkpoint, state: dict[str, Any], recipe: Recipe, change_schedule: bool) -> None:
    where = str(checkpoint.folder)
    if state["task"] != recipe.task:
        raise ValueError(
            f"{where!r} is a checkpoint of a {state['task']} model, and this run trains a {recipe.task} model; name "
            "another output folder."
        )
    theirs, ours = {**recipe.meant_before, **state["spec"]}, recipe.spec.identity
    different = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    others = [name for name in different if name not in recipe.alterable]
    if others or (different and not change_schedule):
        words = ", ".join(f"`{name}` ({theirs.get(name)} there, {ours.get(name)} here)" for name in different)
        way = "" if others else ", or add --change-schedule to resume with the new values"
        raise ValueError(
            f"the checkpoint {where!r} was written with other settings: {words}; give the same values, or another "
            f"output folder{way}."
        )


def _check_data(checkpoint: Checkpoint, theirs: dict[str, str], ours: dict[str, str]) -> None:
    # Format 1 knows the train split alone.
    for split, digest in theirs.items():
        if digest != ours.get(split):
            raise ValueError(
                f"the checkpoint {str(checkpoint.folder)!r} was written with other data: its {split} split has the "
                f"checksum {digest!r}, and the data here have {ours.get(split)!r}; give the data that the run was "
                "started with, or another output folder."
            )


def _load(checkpoint: Checkpoint, state: dict[str, Any], recipe: Recipe) -> None:
    world, step, position = recipe.world, checkpoint.step, state["position"]
    recipe.step.make_moments(step)
    if old_checkpoint.VISION_FILE in state["files"]:
        position = old_checkpoint.read_vision(checkpoint.folder, recipe.step.tensors())
    else:
        same_world = state["world"] == world.size
        states = random_states(world) if same_world else {}
        tensors = recipe.step.tensors()
        read_tensors(checkpoint.folder, {**tensors, **states})
        recipe.step.take(tensors)
        if same_world:
            set_random_states(states, world)
        else:
            # Nothing in a step draws from these numbers today; if it did, all processes would continue from one state.
            words = f"{recipe.spec.seed} {step}"
            torch.manual_seed(int(hashlib.sha256(words.encode()).hexdigest()[:15], 16))
    try:
        recipe.start(position)
    except (LookupError, TypeError, ValueError) as error:
        raise DamagedError(
            f"`position` in {checkpoint.folder / STATE} does not fit this run ({error}); delete "
            f"{str(checkpoint.folder)!r} to resume from the checkpoint before it."
        ) from error
