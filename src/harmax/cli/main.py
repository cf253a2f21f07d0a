"""`harmax VERB`: reads the command line, and turns errors into one line and an exit status.

0: done; 1: some cells failed; 2: bad usage; 130: interrupted.
"""

import os
import sys
from collections.abc import Sequence

from harmax.extras import MissingExtraError, needs

DESCRIPTION = "Harmonic loss: run the paper's experiments, read the results, measure the speed."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    try:
        with needs("cli"):
            import rich  # noqa: F401  (half an install is better noticed before the work than after it)
            import tyro
        from harmax.cli.verbs import VERBS, UsageError
        from harmax.files import DamagedError
    except MissingExtraError as error:
        return _complain(error, 2)
    verb = tyro.extras.subcommand_cli_from_dict(
        VERBS, prog="harmax", description=DESCRIPTION, args=arguments, config=(tyro.conf.FlagCreatePairsOff,)
    )
    try:
        return verb()
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


def _complain(error: object, status: int) -> int:
    print(f"harmax: {error}", file=sys.stderr)
    return status
