"""Whether a run is what it should be, as sentences about what is wrong: used by the lessons and the
tests.

Every check returns a list of findings, empty when all is well, so that a caller may assert, count
or explain.
"""

from .clocks import bytes_differ, clocks_differ
from .parity import TOLERANCE, ranks_differ, tensors_differ
from .runs import run_differs

__all__ = [
    "TOLERANCE",
    "bytes_differ",
    "clocks_differ",
    "ranks_differ",
    "run_differs",
    "tensors_differ",
]
