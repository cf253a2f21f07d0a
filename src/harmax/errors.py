"""Errors of harmax, in one grammar: what is wrong, what was expected, what to do."""

import difflib
import importlib.util
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

EXTRAS: dict[str, tuple[str, ...]] = {
    "cli": ("tyro", "rich"),
    "run": ("safetensors",),
    "figures": ("matplotlib",),
    "sklearn": ("sklearn", "pandas"),
    "statistics": ("scipy",),
    "hf": ("transformers", "accelerate"),
    "text": ("tiktoken", "datasets"),
    "vision": ("PIL", "kornia"),
    "explore": ("pyarrow",),
    "jax": ("jax", "flax"),
    "timm": ("timm", "torchvision"),
    "metric-learning": ("pytorch_metric_learning",),
}


class DamagedError(ValueError):
    """A stored file is missing, truncated, or has other content than its name promises."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message contains the command that installs it."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown name, with the most similar known names.

    >>> unknown("engine", "lokal", ["local", "ray"])
    "`engine` must be one of local, ray, got 'lokal'; did you mean 'local'?"
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "choose one of them."
    return f"`{kind}` must be one of {', '.join(names)}, got {name!r}; {hint}"


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra.

    >>> install_command("run")
    'pip install "harmax[run]"'
    """
    return f'pip install "harmax[{extra}]"'


def is_installed(extra: str) -> bool:
    """Return whether every module of an extra can be found; none of them is imported."""
    return all(importlib.util.find_spec(module) is not None for module in EXTRAS[extra])


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wrap the import of an optional module, so that the error for a missing one names the command to run.

    >>> with needs("run"):
    ...     from safetensors.numpy import load
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS[extra]:
            raise
        raise MissingExtraError(
            f"`{module}` must be installed for this part of harmax, but it is not; run {install_command(extra)}."
        ) from error


def whole_number(name: str, value: int, *, least: int) -> int:
    """Return a whole number (also numpy's) as an int; refuse other types and numbers below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be a whole number, got {value!r}; pass an int.") from None
    if number < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {number}; pass {least} or more.")
    return number
