"""What a right answer shows, as sentences about what is wrong: used by the tests and by the assignments.

Every check returns a list of findings, empty when all is well, so that a caller may assert, count or explain.
"""

from .accumulation import accumulation_findings
from .clocks import bytes_differ, clocks_differ
from .parity import TOLERANCE, ranks_differ, tensors_differ
from .recompute import checkpoint_findings
from .runs import run_differs

__all__ = ["TOLERANCE", "accumulation_findings", "bytes_differ", "checkpoint_findings", "clocks_differ", "ranks_differ", "run_differs",
           "tensors_differ"]
