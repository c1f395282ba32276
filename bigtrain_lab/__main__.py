"""`python -m bigtrain_lab` is `bigtrain`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
