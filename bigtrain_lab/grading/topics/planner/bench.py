"""A planner: the plan that an answer chooses for a cluster."""

from ...trainings import Refused


def play(answer, layers, devices, batch, memory, layer) -> dict:
    plan = answer(layers, devices, batch, memory, dict(layer))
    if plan is None:
        return {"plan": None}
    try:
        dp, pp, rows, recompute = plan
        return {"plan": [int(dp), int(pp), int(rows), bool(recompute)]}
    except (TypeError, ValueError):
        raise Refused(
            f"Your plan is {plan!r}: return (dp, pp, rows, recompute), or None where none fits."
        ) from None
