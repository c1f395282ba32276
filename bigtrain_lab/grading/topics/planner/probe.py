"""A planner by closed forms: how far its plan is from the best of all plans.

turn   = layers / pp (rows forward + launch) (3, with recompute 4)
step   = (m + pp - 1) turn + layers / pp average, where dp > 1
memory = layers / pp (state + min(m, pp) rows kept); with recompute inputs, and one layer's kept
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

NAME = "planner"
NEAR_ENOUGH = 1.01


class Plan(NamedTuple):
    dp: int
    pp: int
    rows: int
    recompute: bool


def scenes(draw):
    for room, times in (("room for all", 3), ("some room", 14), ("no room", 2)):
        yield from ((room, cluster(draw, room)) for _ in range(times))


def cluster(draw, room: str) -> dict:
    """Where there is some room, so much that the fastest plans need more."""
    own = {
        "layers": draw.choice((8, 12, 16, 24)),
        "devices": draw.choice((4, 8, 16)),
        "batch": draw.choice((32, 48, 64)),
        "layer": {
            "forward": draw.uniform(0.5, 2),
            "launch": draw.uniform(0.2, 2),
            "average": draw.uniform(1, 20),
            "state": draw.randint(50, 150),
            "kept": draw.randint(20, 60),
            "input": draw.randint(1, 4),
        },
    }
    held = sorted(held_bytes(plan, **own) for plan in plans(**own))
    lower, upper = held[len(held) // 20], held[len(held) // 3]
    memory = {"room for all": held[-1], "no room": held[0] - 1}.get(
        room, draw.randint(int(lower), int(upper))
    )
    return own | {"memory": int(memory)}


def plans(layers: int, devices: int, batch: int, **_) -> Iterator[Plan]:
    """All that are allowed."""
    for pp, rows, recompute in product(range(1, devices + 1), range(1, batch + 1), (False, True)):
        dp = devices // pp
        if devices % pp == layers % pp == batch % (dp * rows) == 0:
            yield Plan(dp, pp, rows, recompute)


def step(plan: Plan, layers: int, batch: int, layer: dict, **_) -> float:
    own, turns = layers // plan.pp, batch // (plan.dp * plan.rows) + plan.pp - 1
    turn = own * (plan.rows * layer["forward"] + layer["launch"]) * (3 + plan.recompute)
    return turns * turn + own * layer["average"] * (plan.dp > 1)


def held_bytes(plan: Plan, layers: int, batch: int, layer: dict, **_) -> int:
    own, alive = layers // plan.pp, min(plan.pp, batch // (plan.dp * plan.rows))
    left = layer["input"] if plan.recompute else layer["kept"]
    again = plan.rows * layer["kept"] * plan.recompute
    return own * (layer["state"] + alive * plan.rows * left) + again


def shown(inputs: dict, came: dict) -> dict:
    """Whether the plan is one, whether it fits, and its regret."""
    allowed, memory = set(plans(**inputs)), inputs["memory"]
    fitting = [step(plan, **inputs) for plan in allowed if held_bytes(plan, **inputs) <= memory]
    if came["plan"] is None:
        return {"your plan": "none"}
    plan = Plan(*came["plan"])
    if plan not in allowed:
        return {"your plan": "is not allowed"}
    over = held_bytes(plan, **inputs) - memory
    row = {"bytes above the memory": max(0, over)}
    if over <= 0:
        regret = step(plan, **inputs) / min(fitting)
        row["your step, times the best one"] = regret if regret > NEAR_ENOUGH else 1.0
    return row
