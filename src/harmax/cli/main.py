"""`harmax VERB`: reads the command line, and turns errors into one line and an exit status.

0: done; 1: some cells failed; 2: bad usage; 130: interrupted.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harmax.cli.usage import UsageError
from harmax.cli.verbs import VERBS, load_verb
from harmax.extras import MissingExtraError, needs
from harmax.files import DamagedError

DESCRIPTION = "Harmonic loss: run the paper's experiments, read the results, measure the speed."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    try:
        verb = _read(sys.argv[1:] if arguments is None else list(arguments))
    except MissingExtraError as error:
        return _complain(error, 2)
    try:
        return int(verb())
    except (UsageError, MissingExtraError) as error:
        return _complain(error, 2)
    except DamagedError as error:
        return _complain(error, 1)
    except BrokenPipeError:
        # The reader (`| head`) has enough; point stdout elsewhere, or the interpreter complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return _complain("stopped; finished cells are kept, and the same command goes on from there.", 130)


def _read(words: list[str]) -> Any:
    with needs("cli"):
        import rich  # noqa: F401  (half an install is better noticed before the work than after it)
        import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    if words and words[0] in VERBS:
        return tyro.cli(load_verb(words[0]), prog=f"harmax {words[0]}", args=words[1:], config=config)
    # Help, an error, or a script that completes words for a shell, which alone needs to know every verb's flags.
    completes = any(word.startswith("--tyro-") for word in words)
    known = {name: load_verb(name) if completes else _described(text) for name, (_, text) in VERBS.items()}
    return tyro.extras.subcommand_cli_from_dict(
        known, prog="harmax", description=DESCRIPTION, args=words, config=config
    )


def _described(words: str) -> Callable[[], None]:
    """Stand for a verb where only its words are wanted."""

    def verb() -> None: ...

    verb.__doc__ = words
    return verb


def _complain(error: object, status: int) -> int:
    print(f"harmax: {error}", file=sys.stderr)
    return status
