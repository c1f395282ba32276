"""The largest stable rate: the answer is asked for one."""

import math
from numbers import Real

from ...trainings import Refused


def play(answer, tau, curvature) -> float:
    found = answer(tau, curvature)
    if hasattr(found, "item"):
        found = found.item()
    if not isinstance(found, Real) or math.isnan(found):
        raise Refused(f"Your answer returned {found!r}: return the rate, a number.")
    return float(found)
