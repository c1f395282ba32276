"""What a right answer shows, as sentences about what is wrong: used by the tests and by the assignments.

Every check returns a list of findings, empty when all is well, so that a caller may assert, count or explain.
"""

from .accumulation import accumulation_findings
from .clocks import clocks_differ
from .loss_scaler import scaler_findings
from .memory import peak_findings
from .parity import TOLERANCE, tensors_differ
from .recompute import checkpoint_findings
from .recompute_plans import plan_findings
from .precision import update_findings
from .precision_policy import policy_findings
from .schedules import schedule_findings

__all__ = ["TOLERANCE", "accumulation_findings", "checkpoint_findings", "clocks_differ", "peak_findings", "plan_findings", "policy_findings", "scaler_findings",
           "schedule_findings", "tensors_differ", "update_findings"]
