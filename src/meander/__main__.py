"""`python -m meander` is the command `meander`."""

import sys

from meander.cli import main

sys.exit(main())
