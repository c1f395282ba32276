"""The largest stable rate: the answer is asked for one."""

from ...trainings import number


def play(answer, tau, curvature) -> float:
    found = answer(tau, curvature)
    return number(found, f"Your answer returned {found!r}: return the rate, a number.")
