"""The text of a run: opened, or made up, and refused where it does not fit."""

from pathlib import Path

from harmax.data.text import TokenShards
from harmax.train.generated import generate_shards
from harmax.train.spec import PretrainSpec
from harmax.train.world import World


def open_text(spec: PretrainSpec, output: Path, world: World) -> tuple[TokenShards, TokenShards]:
    """Return the train and the val split of a run's text; one that is made up lies in its folder."""
    folder = _generate(spec, output / "tokens", world) if spec.data is None else spec.data
    train, val = TokenShards(folder, "train"), TokenShards(folder, "val")
    if train.vocabulary.size > spec.vocab:
        raise ValueError(
            f"`vocab` must be at least {train.vocabulary.size}, the vocabulary of {str(folder)!r}, got {spec.vocab}; "
            "give a larger one, or the text that belongs to it."
        )
    if not val.count_windows(spec.context):
        raise ValueError(
            f"the val split of {str(folder)!r} must hold a sequence of {spec.context} tokens and one more, got "
            f"{val.tokens} tokens; take a shorter `context`, or prepare more text."
        )
    if train.count_windows(spec.context) < spec.sequences:
        raise ValueError(
            f"the train split of {str(folder)!r} must hold the {spec.sequences} sequences of a step, {spec.context} "
            f"tokens each, got {train.tokens} tokens; prepare more text, or take fewer `sequences`."
        )
    return train, val


def _generate(spec: PretrainSpec, folder: Path, world: World) -> Path:
    if not spec.generated:
        raise ValueError("`data` must name a folder of token shards, got none; make one with `harmax data text`.")
    problem = None
    if world.leads:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            generate_shards(folder, vocab=spec.vocab)
        except (OSError, ValueError) as error:
            problem = str(error)
    if (problem := world.tell(problem)) is not None:
        raise ValueError(problem)
    return folder
