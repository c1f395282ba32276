"""The recompute plans, one file each, in the order of the lesson; any other file here is imported
after them: add one, gain a plan."""

from ....core.family import import_files

from . import (  # noqa: F401  # isort: skip
    keep_all,
    keep_none,
    every_k,
    sqrt,
    halving,
    revolve,
    optimal,
    selective,
)

import_files(__name__, __path__)
