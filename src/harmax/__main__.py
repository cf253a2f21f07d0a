"""`python -m harmax`, which torchrun can start as well: the command line."""

import sys

from harmax.cli.main import main

sys.exit(main())
