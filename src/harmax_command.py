"""The command `harmax`. It stands outside the package, whose import loads torch, to be there before Ctrl-C comes."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C during the imports ends it with a line, as it does later."""
    try:
        from harmax.cli.main import main as run
    except KeyboardInterrupt:
        print("harmax: stopped before it began.", file=sys.stderr)
        return 130
    return run()
