"""A planner of one's own for recompute: the order that it gives for a chain."""

from collections.abc import Iterable

from bigtrain_lab.order.schedule import Action

from ...trainings import Refused

ASKED = "return a list of A(i), F(i) and B(i)."


def play(answer, sizes, costs, budget) -> list:
    """Each action's [kind, layer]."""
    plan = answer([*sizes], [*costs], budget)
    if not isinstance(plan, Iterable):
        raise Refused(f"There is no plan: your answer gave {plan!r}. Instead, {ASKED}")
    plan = [*plan]
    if strange := [action for action in plan if not isinstance(action, Action)]:
        raise Refused(f"Your plan holds {strange[0]!r}, which is no action: {ASKED}")
    return [[action.kind, int(action.stage)] for action in plan]
