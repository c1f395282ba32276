"""What a right answer shows, as sentences about what is wrong: used by the tests and by the assignments.

Every check returns a list of findings, empty when all is well, so that a caller may assert, count or explain.
"""

from .accumulation import accumulation_findings
from .clocks import bytes_differ, clocks_differ
from .loss_scaler import scaler_findings
from .memory import peak_findings
from .parity import TOLERANCE, ranks_differ, tensors_differ
from .recompute import checkpoint_findings
from .recompute_plans import plan_findings
from .precision import update_findings
from .precision_policy import policy_findings
from .runs import run_differs
from .schedules import schedule_findings

__all__ = ["TOLERANCE", "accumulation_findings", "bytes_differ", "checkpoint_findings", "clocks_differ", "peak_findings", "plan_findings",
           "policy_findings", "ranks_differ", "run_differs", "scaler_findings", "schedule_findings", "tensors_differ", "update_findings"]
