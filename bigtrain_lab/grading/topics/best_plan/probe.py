"""A planner for recompute: whether its plan runs, how many records are alive at once, what it keeps
above the budget, and the work that it does twice.

    best(s, t, room) = min over j   costs[s:j] + best(j, t, room - sizes[s]) + best(s, j - 1, room)

The chains are those for which this recursion is as good as a search of all plans.
"""

import random

from bigtrain_lab.core import Impossible
from bigtrain_lab.order.recompute.plan import Chain, extra_cost, planned
from bigtrain_lab.order.schedule import Action

NAME = "best-plan"
ALLOWS = (
    "bigtrain_lab.order.recompute.plan",
    "bigtrain_lab.order.schedule",
    "bigtrain_lab.core",
    "bigtrain_lab.core.words",
)
FORBIDS = tuple(
    f"bigtrain_lab.order.recompute.plan.{name}" for name in ("Recompute", "plan_of", "named")
)
# in the five that are left out a state is best dropped before its own backward
CHAINS = sorted(set(range(400)) - {40, 45, 169, 223, 271})


def scenes(draw):
    for layers, slots in (
        (1, 1),
        (2, 1),
        (4, 1),
        (3, 2),
        (4, 2),
        (5, 5),
        (draw.randint(9, 11), draw.randint(2, 3)),
        (12, draw.randint(3, 5)),
        (12, 9),
        (12, 2),
    ):
        yield (
            f"{layers} equal layers and room for {slots}",
            {"sizes": [1] * layers, "costs": [1] * layers, "budget": slots},
        )
    for dear in (2, draw.randint(4, 6), 8):
        costs = [draw.randint(6, 12) if i == dear else 1 for i in range(10)]
        yield (
            f"sizes of 1, costs {costs}, budget 3",
            {"sizes": [1] * 10, "costs": costs, "budget": 3},
        )
    for seed in draw.sample(CHAINS, 8):
        sizes, costs, budget = chain(seed)
        unit, work = draw.randint(1, 3), draw.choice((0.1, 1, 2))
        inputs = {
            "sizes": [unit * size for size in sizes],
            "costs": [work * cost for cost in costs],
            "budget": unit * budget,
        }
        yield ", ".join(f"{what} {numbers}" for what, numbers in inputs.items()), inputs


def chain(seed: int) -> tuple[list[int], list[int], int]:
    """Sizes, costs and a budget of 6 to 9 unequal layers."""
    draw = random.Random(seed)
    n = draw.randint(6, 9)
    sizes, costs = ([draw.randint(1, 9) for _ in range(n)] for _ in "sc")
    return sizes, costs, draw.randint(sizes[0] + min(sizes[1:]), sum(sizes) * 2 // 3)


def shown(inputs: dict, order: list) -> dict:
    """What a plan does; why it cannot, where it cannot run."""
    sizes, n = inputs["sizes"], len(inputs["sizes"])
    try:
        ops = planned([Action(kind, layer, 0) for kind, layer in order], n)
    except Impossible as error:
        return {"how it runs": str(error)}
    kinds = [kind for kind, _ in order]
    alive = [kinds[:at].count("F") - kinds[:at].count("B") for at in range(len(kinds))]
    kept = max(sum(sizes[i] for i in op.keep) for op in ops)
    weighed = Chain.of((*sizes, 0), (0,) * n, inputs["costs"], saves_input=(False,) * n)
    return {
        "how it runs": "to the end",
        "records alive at once": max(alive),
        "kept above the budget": max(0, kept - inputs["budget"]),
        "work done twice": extra_cost(ops, weighed),
    }
