"""`harmax VERB`: read the command line, run the verb, and turn errors into one line and an exit status.

Exit status 0: success. 1: some cells failed, or a file is damaged. 2: bad usage. 130: interrupted. 141: the reader of
a pipe (`| head`) has closed it.
"""

import io
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harmax.cli.usage import UsageError, silence
from harmax.cli.verbs import LAB_VERBS, all_verbs, load_verb
from harmax.errors import DamagedError, MissingExtraError, needs, unknown

DESCRIPTION = "Harmonic loss: train models, inspect their class centers, measure speed, check the paper."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    _print_anywhere()
    try:
        verb = _read(sys.argv[1:] if arguments is None else list(arguments))
        status = int(verb())
        if sys.stdout is not None:  # as it is where the shell has closed it (`>&-`)
            sys.stdout.flush()  # a closed pipe is noticed here, not while the interpreter exits
        return status
    except (UsageError, MissingExtraError) as error:
        return _complain(error, 2)
    except DamagedError as error:
        return _complain(error, 1)
    except BrokenPipeError:
        silence(sys.stdout)  # else the interpreter complains while it exits
        return 128 + signal.SIGPIPE
    except (OSError, MemoryError) as error:
        return _complain(str(error) or "memory ran out; free some, or ask for less.", 1)
    except KeyboardInterrupt:
        return _complain("stopped; finished work is kept, and the same command continues it.", 130)


def _print_anywhere() -> None:
    """Let a terminal that knows only ASCII show "?" for other characters, in place of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _read(words: list[str]) -> Any:
    verbs = all_verbs()
    if words and words[0] in LAB_VERBS and words[0] not in verbs:
        raise UsageError(f"`harmax {words[0]}` needs harmax-lab, which is not installed; run pip install harmax-lab.")
    if words and words[0] not in verbs and not words[0].startswith("-"):
        raise UsageError(unknown("verb", words[0], dict.fromkeys((*verbs, *LAB_VERBS))))
    with needs("cli"):
        import rich  # noqa: F401  (used only later, but a missing package should be reported before the work)
        import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    if words and words[0] in verbs:
        return tyro.cli(load_verb(verbs[words[0]][0]), prog=f"harmax {words[0]}", args=words[1:], config=config)
    # This prints help, an error, or a completion script for a shell. Only the script needs the flags of every verb.
    completes = any(word.startswith("--tyro-") for word in words)
    known = {name: load_verb(place) if completes else _described(text) for name, (place, text) in verbs.items()}
    return tyro.extras.subcommand_cli_from_dict(
        known, prog="harmax", description=DESCRIPTION, args=words, config=config
    )


def _described(words: str) -> Callable[[], None]:
    """Return an empty verb with this description, for help texts."""

    def verb() -> None: ...

    verb.__doc__ = words
    return verb


def _complain(error: object, status: int) -> int:
    print(f"harmax: {error}", file=sys.stderr)
    return status
