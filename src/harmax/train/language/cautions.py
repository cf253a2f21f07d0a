"""Settings that are allowed and probably not intended, reported before a run has cost a day."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from harmax.data.text import TokenShards
from harmax.train.language.settings import PretrainSpec

TIMES_SEEN = 4
"""Number of times a text can be read before new text would be worth clearly more."""


def find_cautions(spec: PretrainSpec, train: TokenShards, parameters: int, output: Path) -> Iterator[str]:
    """Yield one sentence per setting that is allowed and probably not intended.

    Args:
        spec: the run's settings.
        train: the text that it reads.
        parameters: number of parameters of the model, a tied matrix once.
        output: the run's folder, which need not exist.
    """
    if spec.warmup >= spec.end_of_decay:
        yield (
            f"`warmup` should end before the schedule does at step {spec.end_of_decay}, got {spec.warmup}: the "
            "learning rate reaches `lr` at the very end or never; shorten the warm-up, or give the `decay_steps` of "
            "the whole run."
        )
    times = spec.steps * spec.sequences / train.count_windows(spec.context)
    if times > TIMES_SEEN:
        yield (
            f"the text should be read at most {TIMES_SEEN} times, got {times:.1f}: {train.tokens:,} tokens for "
            f"{spec.steps} steps of {spec.sequences * spec.context:,}; prepare more text, or use fewer `steps`."
        )
    room, wanted = free_bytes(output), needed_bytes(spec, parameters) - _held_bytes(output / "checkpoints")
    if room < wanted:
        yield (
            f"the disk of {str(output)!r} should have {_gib(wanted)} free, for {spec.keep} checkpoints, the next one "
            f"and the model, got {_gib(room)}; make room, or reduce `keep`."
        )


def needed_bytes(spec: PretrainSpec, parameters: int) -> int:
    """Estimate the disk space of a run: weights and two moments per checkpoint, in float32, and the model.

    >>> needed_bytes(PretrainSpec(keep=2), 124_475_904) // 2**20
    4748
    """
    # The oldest checkpoint is deleted only when the newest is complete.
    return 4 * parameters * (3 * (spec.keep + 1) + 1)


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or will be on."""
    there = next(part for part in (folder.absolute(), *folder.absolute().parents) if part.exists())
    return shutil.disk_usage(there).free


def _held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*.safetensors"))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
