"""Variants of an experiment: fields of its spec that a user has set, read as the types that the spec declares."""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, field, fields, replace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from harmax.errors import unknown

S = TypeVar("S")
YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def added(default: Any) -> Any:
    """Return a field that a spec was given later. At its default it is not stored, so that older runs keep their key.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Example:
    ...     steps: int = 10
    ...     exponent: float = added(2.0)
    >>> stored(Example()), stored(Example(exponent=4.0))
    ({'steps': 10}, {'steps': 10, 'exponent': 4.0})
    """
    return field(default=default, metadata={"added": True})


def stored(spec: Any) -> dict[str, Any]:
    """Return the fields of a spec that decide its key: all but added ones that have their default."""
    usual = {entry.name: entry.default for entry in fields(spec) if "added" in entry.metadata}
    return {name: value for name, value in asdict(spec).items() if usual.get(name, MISSING) != value}


def with_changes(experiment: str, spec: S, changes: Mapping[str, Any]) -> S:
    """Return a spec with other values in some fields; texts are read as the types of the fields.

    >>> from harmax_lab.toy.toy_training import ToySpec
    >>> with_changes("toy_cases", ToySpec(), {"exponent": "4", "cases": "1"}).cases
    (1,)
    >>> with_changes("toy_cases", ToySpec(), {"exponnt": 4})
    Traceback (most recent call last):
    ValueError: `toy_cases` has no setting 'exponnt'; did you mean 'exponent'? Its settings: cases, steps, ...
    """
    kinds = get_type_hints(type(spec))
    known = [entry.name for entry in fields(spec) if entry.name != "seeds"]  # type: ignore[arg-type]
    values = {}
    for name, value in changes.items():
        if name == "seeds":
            raise ValueError("seeds are not set with `--set`, got 'seeds'; use `--seeds` (in Python: `seeds=`).")
        if name not in known:
            hint = unknown("", name, known).rpartition("; ")[2].removesuffix("choose one of them.")
            raise ValueError(f"`{experiment}` has no setting {name!r}; {hint} Its settings: {', '.join(known)}.")
        values[name] = _read(name, _as_text(value), kinds[name])
    return replace(spec, **values)  # type: ignore[type-var]


def parse_changes(words: Sequence[str]) -> dict[str, str]:
    """Read the values of `--set`.

    >>> parse_changes(["exponent=4", "tasks=lattice,genealogy"])
    {'exponent': '4', 'tasks': 'lattice,genealogy'}
    """
    changes: dict[str, str] = {}
    for word in words:
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (name and equals and value):
            raise ValueError(f"`--set` must be FIELD=VALUE, got {word!r}; write --set exponent=4, for example.")
        if name in changes:
            raise ValueError(f"`--set` must name each field once, got {name!r} twice; drop one of them.")
        changes[name] = value
    return changes


def changes_of(run: Any) -> dict[str, Any]:
    """Return what a user has changed in the settings of a stored run, besides its seeds."""
    return {name: value for name, value in run.config["overrides"].items() if name != "seeds"}


def in_words(changes: Mapping[str, Any]) -> str:
    """Write changed fields as `--set` takes them.

    >>> in_words({"exponent": 4.0, "tasks": ["lattice", "genealogy"]})
    'exponent=4.0, tasks=lattice,genealogy'
    """
    return ", ".join(f"{name}={_as_text(value)}" for name, value in changes.items())


def as_flags(changes: Mapping[str, Any]) -> str:
    """Write changed fields as the words of a command line.

    >>> as_flags({"exponent": 4.0})
    ' --set exponent=4.0'
    """
    return "".join(f" --set {name}={_as_text(value)}" for name, value in changes.items())


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _read(name: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is tuple:
        words, parts = [word.strip() for word in text.removesuffix(",").split(",")], get_args(kind)
        kinds = [parts[0]] * len(words) if parts[-1] is Ellipsis else list(parts)
        if len(words) != len(kinds) or not all(words):
            wanted = "values" if parts[-1] is Ellipsis else f"{len(kinds)} values"
            raise ValueError(f"`{name}` must be {wanted} separated by commas, got {text!r}; write {name}=A,B.")
        return tuple(_read(name, word, one) for word, one in zip(words, kinds, strict=True))
    if get_origin(kind) in (types.UnionType,):
        if text.lower() == "none":
            return None
        kind = next(one for one in get_args(kind) if one is not types.NoneType)
    reader, words_for_it = READERS[kind]
    try:
        return reader(text)
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"`{name}` must be {words_for_it}, got {text!r}; set another value.") from None


def _whole(text: str) -> int:
    value = float(text)
    if value != int(value):
        raise ValueError
    return int(text) if text.lstrip("+-").isdecimal() else int(value)  # people write 1e4 for ten thousand


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (lambda text: YES_OR_NO[text.lower()], "true or false"),
    int: (_whole, "a whole number"),
    float: (_finite, "a finite number"),
    str: (str, "a word"),
}
