"""Optional dependencies: which extra brings which module, and what to say when one is missing."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS: dict[str, tuple[str, ...]] = {
    "cli": ("tyro", "rich"),
    "run": ("safetensors",),
    "report": ("matplotlib", "jinja2"),
    "sklearn": ("sklearn",),
    "hf": ("transformers",),
    "text": ("tiktoken", "datasets"),
    "vision": ("PIL", "kornia"),
    "ray": ("ray",),
}


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra.

    >>> install_command("run")
    'pip install "harmax[run]"'
    """
    return f'pip install "harmax[{extra}]"'


def is_installed(extra: str) -> bool:
    """Whether every module of an extra can be found, without importing any of them."""
    return all(importlib.util.find_spec(module) is not None for module in EXTRAS[extra])


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Surround the import of an optional module, so that its absence says what to do.

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
            f"`{module}` must be installed for this part of harmax, and it is not; run {install_command(extra)}."
        ) from error
