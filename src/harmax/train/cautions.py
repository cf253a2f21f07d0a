"""What a run may do, and its user should hear of before it has cost a day."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from harmax.data.text import TokenShards
from harmax.train.spec import PretrainSpec

TIMES_SEEN = 4
"""How often a text can be read before new text would be worth clearly more."""


def find_cautions(spec: PretrainSpec, train: TokenShards, parameters: int, output: Path) -> Iterator[str]:
    """Yield what is allowed and seldom meant.

    Args:
        spec: of the run.
        train: the text it reads.
        parameters: of the model, a tied matrix once.
        output: the run's folder, there or not.
    """
    if spec.warmup >= spec.end_of_decay:
        yield (
            f"`warmup` should end before the schedule does at step {spec.end_of_decay}, got {spec.warmup}: `lr` is "
            "reached at the very end or never; take a shorter one, or name the `decay_steps` of the whole run."
        )
    times = spec.steps * spec.sequences / train.count_windows(spec.context)
    if times > TIMES_SEEN:
        yield (
            f"the text should be read at most {TIMES_SEEN} times, got {times:.1f}: {train.tokens:,} tokens for "
            f"{spec.steps} steps of {spec.sequences * spec.context:,}; prepare more text, or take fewer steps."
        )
    room, wanted = free_bytes(output), needed_bytes(spec, parameters) - _held_bytes(output / "checkpoints")
    if room < wanted:
        yield (
            f"the disk of {str(output)!r} should have {_gib(wanted)} free, for {spec.keep} checkpoints, the next one "
            f"and the model, got {_gib(room)}; make room, or `keep` fewer."
        )


def needed_bytes(spec: PretrainSpec, parameters: int) -> int:
    """Estimate what a run leaves on the disk at most: weights and two moments, float32, a checkpoint, and the model.

    >>> needed_bytes(PretrainSpec(keep=2), 124_475_904) // 2**20
    4748
    """
    # The oldest checkpoint goes only when the newest is whole.
    return 4 * parameters * (3 * (spec.keep + 1) + 1)


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or will be."""
    there = next(part for part in (folder.absolute(), *folder.absolute().parents) if part.exists())
    return shutil.disk_usage(there).free


def _held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*.safetensors"))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
