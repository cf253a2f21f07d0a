"""`harmax VERB`: reads the command line, and turns errors into one line and an exit status.

0: done; 1: some cells failed; 2: bad usage; 130: interrupted; 141: the reader of a pipe (`| head`) has closed it.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harmax.cli.usage import UsageError, silence
from harmax.cli.verbs import LAB_VERBS, all_verbs, load_verb
from harmax.errors import DamagedError, MissingExtraError, needs

DESCRIPTION = "Harmonic loss: train models, look at their class centers, measure the speed, check the paper."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    try:
        verb = _read(sys.argv[1:] if arguments is None else list(arguments))
    except (UsageError, MissingExtraError) as error:
        return _complain(error, 2)
    try:
        status = int(verb())
        sys.stdout.flush()  # what a closed pipe does not take is noticed here, not while the interpreter exits
        return status
    except (UsageError, MissingExtraError) as error:
        return _complain(error, 2)
    except DamagedError as error:
        return _complain(error, 1)
    except BrokenPipeError:
        silence(sys.stdout)  # else the interpreter complains while it exits
        return 128 + signal.SIGPIPE
    except OSError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return _complain("stopped; finished cells are kept, and the same command goes on from there.", 130)


def _read(words: list[str]) -> Any:
    with needs("cli"):
        import rich  # noqa: F401  (half an install is better noticed before the work than after it)
        import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    verbs = all_verbs()
    if words and words[0] in verbs:
        return tyro.cli(load_verb(verbs[words[0]][0]), prog=f"harmax {words[0]}", args=words[1:], config=config)
    if words and words[0] in LAB_VERBS:
        raise UsageError(f"`harmax {words[0]}` needs harmax-lab, which is not installed; run pip install harmax-lab.")
    # Help, an error, or a completion script for a shell; only the last needs every verb's flags.
    completes = any(word.startswith("--tyro-") for word in words)
    known = {name: load_verb(place) if completes else _described(text) for name, (place, text) in verbs.items()}
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
