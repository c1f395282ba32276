"""How deep a model fits in a fixed memory, by recompute plan: the experiment checkpoint, predicted
at depth after depth.

What must fit is all that the prediction counts at action boundaries of the second step, when the
optimizer's state is there: weights, gradients, that state, and what the plan keeps. `optimal` is
given what the rest leaves, and so is as deep as any plan.
"""

from bisect import bisect_left
from typing import NamedTuple

from ..core import refuse
from .checkpoint import Checkpoint


class Depth(NamedTuple):
    """`layers` that fit; `work` of a step beside keep-all's at that depth."""

    layers: int
    work: float


def deepest(experiment: Checkpoint, plan: str, memory_bytes: int) -> Depth:
    """The deepest model of the experiment's kind that a plan trains within so much memory, as far
    as its `layers` go.

    Impossible where not even the smallest fits.
    """
    low, high = Checkpoint.knobs()["layers"].low, Checkpoint.knobs()["layers"].high
    depths = range(low, high + 1)
    fitting = bisect_left(
        depths, True, key=lambda layers: within(experiment, plan, layers, memory_bytes) is None
    )
    refuse(
        (
            not fitting,
            f"No model of {low} layers fits into {memory_bytes:,} bytes by {plan}: give more, or"
            " make its layers smaller.",
        )
    )
    best = within(experiment, plan, depths[fitting - 1], memory_bytes)
    return Depth(best.layers, best.work(best.simulated()))


def within(experiment: Checkpoint, plan: str, layers: int, memory_bytes: int) -> Checkpoint | None:
    """The experiment at this depth by this plan, where it fits."""
    change, budgets = (
        {"plan": plan, "layers": layers, "steps": max(2, experiment.steps), "memory_mb": 0.0},
        [experiment.budget],
    )
    if plan == "optimal":
        plain = experiment.replace(**change | {"plan": "keep-none"})
        least = plain.simulated()
        spare = (
            memory_bytes - least.peak_bytes(0) + plain.saved_peak(least)
        )  # for what is kept, when the rest is as large as it gets
        budgets = [100.0, min(100.0, 100 * spare / plain.everything)]
    # a budget may be below the smallest
    asked = experiment.possible({each: change | {"budget": each} for each in budgets})
    return next((each for _, each in asked if each.simulated().peak_bytes(0) <= memory_bytes), None)
