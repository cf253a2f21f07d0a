"""The command line as a module: `python -m harmax`, or `torchrun -m harmax` for several processes."""

import sys

from harmax.cli.main import main

sys.exit(main())
