"""What a right answer shows, as sentences about what is wrong: used by the tests and by the assignments.

Every check returns a list of findings, empty when all is well, so that a caller may assert, count or explain.
"""

from .clocks import clocks_differ
from .parity import TOLERANCE, tensors_differ
from .schedules import schedule_findings

__all__ = ["TOLERANCE", "clocks_differ", "schedule_findings", "tensors_differ"]
