"""A planner of one's own for recompute: the cheapest order of A, F and B within a budget of kept states.

    best(s, t, room) = min over j   costs[s:j] + best(j, t, room - sizes[s]) + best(s, j - 1, room)

Of a plan we show whether it runs, how many records are alive at once, how much it keeps above the
budget, and the work that it does twice. The chains are those for which the recursion is as good as a
search of all plans (recompute_search.py), which is among the right answers.
"""

import random
from collections.abc import Iterable

from ...core import Impossible
from ...recompute import Chain, extra_cost, planned
from ..likeness import Scene, Topic, Wrong

RIGHT = """
from functools import cache
from bigtrain_lab.recompute import A, B, F

def answer(sizes, costs, budget):
    @cache
    def best(s, t, room):
        if s == t:
            return 0, (F(t), B(t))
        ways = []
        left = room - sizes[s]
        for j in range(s + 1, t + 1):
            if left >= sizes[j] or j == t:
                first, second = best(j, t, left), best(s, j - 1, room)
                work = sum(costs[s:j]) + first[0] + second[0]
                ways.append((work, (*map(A, range(s, j)), *first[1], *second[1])))
        return min(ways, key=lambda way: way[0])
    return list(best(0, len(sizes) - 1, budget)[1])
"""
SEARCH = """
from bigtrain_lab.recompute import Chain
from bigtrain_lab.recompute_search import cheapest

def answer(sizes, costs, budget):
    n = len(sizes)
    chain = Chain.of((*sizes, 0), (0,) * n, costs, saves_input=(False,) * n)
    return cheapest(chain, budget, early=False, at_most=float("inf"))
"""
TABLE = """
import numpy as np
from bigtrain_lab.recompute import A, B, F

def answer(sizes, costs, budget):
    n, ahead = len(sizes), np.concatenate([[0], np.cumsum(costs)])
    cost = np.zeros((n, n, budget + 1))
    keep = np.zeros((n, n, budget + 1), dtype=int)
    for length in range(1, n):
        for s in range(n - length):
            t = s + length
            for room in range(budget + 1):
                cost[s, t, room] = np.inf
                for j in range(s + 1, t + 1):
                    left = room - sizes[s]
                    if left < 0 or j < t and left < sizes[j]:
                        continue
                    work = ahead[j] - ahead[s] + cost[j, t, left] + cost[s, j - 1, room]
                    if work <= cost[s, t, room]:
                        cost[s, t, room], keep[s, t, room] = work, j
    def order(s, t, room):
        if s == t:
            yield from (F(t), B(t))
            return
        j = keep[s, t, room]
        for i in np.arange(s, j):
            yield A(i)
        yield from order(j, t, room - sizes[s])
        yield from order(s, j - 1, room)
    return order(0, n - 1, budget)
"""
OURS = """
from bigtrain_lab.recompute_optimum import best_plan as answer
"""
EMPTIES = """
from bigtrain_lab.recompute import A, B, F

class Planner:
    def __init__(self, sizes, costs):
        self.sizes, self.costs, self.known = tuple(sizes), tuple(costs), {}
        sizes.clear(), costs.clear()

    def cost(self, s, t, room):
        return 0 if s == t else self.ways(s, t, room)[0]

    def ways(self, s, t, room):
        if (s, t, room) not in self.known:
            left = room - self.sizes[s]
            self.known[s, t, room] = min(
                (sum(self.costs[s:j]) + self.cost(j, t, left) + self.cost(s, j - 1, room), j)
                for j in range(s + 1, t + 1) if j == t or left >= self.sizes[j])
        return self.known[s, t, room]

    def write(self, plan, s, t, room):
        if s < t:
            _, j = self.ways(s, t, room)
            plan.extend(A(i) for i in range(s, j))
            self.write(plan, j, t, room - self.sizes[s])
            self.write(plan, s, j - 1, room)
        else:
            plan += [F(t), B(t)]

def answer(sizes, costs, budget):
    plan, n = [], len(sizes)
    Planner(sizes, costs).write(plan, 0, n - 1, budget)
    return tuple(plan)
"""
HEAD = "from bigtrain_lab.recompute import A, B, F\n\ndef answer(sizes, costs, budget):\n    n = len(sizes)\n"
SEGMENTS = (
    HEAD
    + """
    k = {k}
    plan, starts = list(map(A, range(range(0, n, k)[-1]))), range(0, n, k)
    for start in reversed(starts):
        layers = range(start, min(start + k, n))
        plan += {refill}
    return plan
"""
)
TOGETHER = "[*map(F, layers), *map(B, reversed(layers))]"
ONE_BY_ONE = "[a for t in reversed(layers) for a in (*map(A, range(start, t)), F(t), B(t))]"
STATES = "[*map(A, layers[:-1]), *(one(t) for t in reversed(layers) for one in (F, B))]"
HALVES = """
from bigtrain_lab.recompute import A, B, F

def plan(sizes, low, high, room):
    middle, left = (low + high + 1) // 2, room - sizes[low]
    if low == high or left < sizes[middle]:
        return [a for t in range(high, low - 1, -1) for a in (*map(A, range(low, t)), F(t), B(t))]
    return [*map(A, range(low, middle)), *plan(sizes, middle, high, left), *plan(sizes, low, middle - 1, room)]

def answer(sizes, costs, budget):
    return plan(sizes, 0, len(sizes) - 1, budget)
"""
ONE_SET = (
    HEAD
    + """
    sets = [kept for r in range(n) for kept in combinations(range(1, n), r) if sum(sizes[i] for i in (0, *kept)) <= budget]
    starts = lambda kept: [max(i for i in (0, *kept) if i <= t) for t in range(n - 1)]
    kept = min(sets, key=lambda kept: sum(sum(costs[s:t]) for t, s in enumerate(starts(kept))))
    plan = [*map(A, range(n - 1)), F(n - 1), B(n - 1)]
    for t, s in reversed(list(enumerate(starts(kept)))):
        plan += [*map(A, range(s, t)), F(t), B(t)]
    return plan
""".replace("    sets", "    from itertools import combinations\n    sets")
)
START, KEY, LEFT, FITS = (
    "budget)[1]",
    "lambda way: way[0]",
    "left = room - sizes[s]",
    "if left >= sizes[j] or j == t:",
)
WORK, SECOND = "sum(costs[s:j])", "best(s, j - 1, room)"
RETURN, LEAF = "return list(", "(F(t), B(t))"

RECORD = "Record a layer only when its own backward comes next: F(i) just before B(i)."
CHEAPEST = "Your plan runs and fits, but does too much work twice: try every place for the next kept state, and add up what each costs in all."
NOTHING_KEPT = (
    "You kept the chain's input alone: keep states on the way, as many as the budget has room for."
)
INPUT = (
    "You kept one state more than there is room for: count the chain's input among the kept states."
)
ADD_UP = "Your plan does too much work twice: charge each place for x_j with all advances that lead there from x_s."
LIST = "return a list of A(i), F(i) and B(i)."


def before(line: str) -> tuple[str, str]:
    """Put a line in front of all others of the answer."""
    return "    @cache\n", f"    {line}\n    @cache\n"


class BestPlan(Topic):
    name = "best-plan"
    allows = (
        "bigtrain_lab.recompute",
        "bigtrain_lab.schedule",
        "bigtrain_lab.core",
        "bigtrain_lab.words",
    )
    forbids = (
        "bigtrain_lab.recompute.Recompute",
        "bigtrain_lab.recompute.plan_of",
        "bigtrain_lab.recompute.named",
    )
    hints = (
        "Which state do you keep next after the one that you run from, and what does it cost to get there?",
        "Once x_j is kept there are two smaller problems: the layers from j on, and those before it. How much room has each?",
        "Let best(s, t, room) try every j from s + 1 to t: the cost of A(s) to A(j - 1), then the layers from j on with "
        "room - sizes[s], then those before j with all the room again.",
    )
    right = {
        "the recursion, remembered": RIGHT,
        "a search of all plans": SEARCH,
        "a table, yielded": TABLE,
        "a class that empties its lists": EMPTIES,
        "the library's": OURS,
        "lists": RIGHT.replace(
            "first, second =", "first, second = [best(j, t, left), best(s, j - 1, room)]; _ ="
        ).replace("(F(t), B(t))", "[F(t), B(t)]"),
    }
    wrong = {
        "nothing": Wrong(f"There is no plan: {LIST}", (before("return None"),)),
        "its cost": Wrong(
            f"There are numbers in your plan: {LIST}", ((RETURN, "return ("), (START, "budget)"))
        ),
        "words": Wrong(
            f"You returned words: {LIST}", ((RETURN, "return list(map(str, "), (START, START + ")"))
        ),
        "keeps nothing": Wrong(
            NOTHING_KEPT,
            HEAD
            + "    return [a for t in reversed(range(n)) for a in (*map(A, range(t)), F(t), B(t))]",
        ),
        "all recorded": Wrong(
            f"You recorded all layers and ran none again: that keeps every record. {RECORD}",
            HEAD + "    return [*map(F, range(n)), *map(B, reversed(range(n)))]",
        ),
        "segments together": Wrong(
            f"Several layers are recorded before their backwards, so their records are alive together. {RECORD}",
            SEGMENTS.format(k="max(1, n // budget)", refill=TOGETHER),
        ),
        "sqrt segments together": Wrong(
            f"Several layers are recorded before their backwards, so their records are alive together. {RECORD}",
            SEGMENTS.format(k="max(1, round(n ** 0.5))", refill=TOGETHER),
        ),
        "segments": Wrong(
            "Your plan does too much work twice: try other places for the kept states, and use room again once it is free.",
            SEGMENTS.format(k="-(-n // budget)", refill=ONE_BY_ONE),
        ),
        "refilled states": Wrong(
            "Your plan keeps more than the budget allows: let sizes, costs and budget decide what is kept.",
            SEGMENTS.format(k="max(1, round(n ** 0.5))", refill=STATES),
        ),
        "halves": Wrong(
            "Another place for a kept state is cheaper: try every place for the next one, and take the cheapest.",
            HALVES,
        ),
        "one set": Wrong(
            "Room that is free again is not used again: once x_j's backward has run, keep another state in its place.",
            ONE_SET,
        ),
        "remembers without the room": Wrong(
            "Some layers were planned for another room than they have: give each its own, and remember by s, t and room.",
            (
                (
                    "    def best(s, t, room):",
                    "    def best(s, t, room):\n        if (s, t) not in known:\n"
                    "            known[s, t] = found(s, t, room)\n        return known[s, t]\n    def found(s, t, room):",
                ),
                before("known = {}"),
                ("    @cache\n", ""),
            ),
        ),
        "backward in order": Wrong(
            "The backwards run in the wrong order: go from the last layer down, B(i) after B(i + 1).",
            HEAD + "    return [*map(F, range(n)), *map(B, range(n))]",
        ),
        "no advance": Wrong(
            "F(i) runs before its input x_i is there: first run A from a kept state up to layer i - 1.",
            HEAD + "    return [a for t in reversed(range(n)) for a in (F(t), B(t))]",
        ),
        "no last backward": Wrong(
            "A backward is missing: a plan has one B for each layer, and ends with B(0).",
            ((START, START + "[:-1]"),),
        ),
        "no record": Wrong(
            "A backward has no record: put F(i) before B(i).", ((LEAF, "(A(t), B(t))"),)
        ),
        "one advance too many": Wrong(
            "An advance runs that nothing needs: leave it out, since F(i) itself runs layer i.",
            ((LEAF, "(A(t), F(t), B(t))[t > 0:]"),),
        ),
        "one slot more": Wrong(INPUT, ((START, "budget + 1)[1]"),)),
        "one slot less": Wrong(
            "Part of the budget is never used: kept states may weigh all of it, the state in hand and the record not counted.",
            ((START, "max(sizes[0], budget - 1))[1]"),),
        ),
        "nothing taken off": Wrong(
            "Kept states and room do not add up: take each kept state off the room once, and nothing for the one in hand.",
            ((LEFT, "left = room"),),
        ),
        "taken off both": Wrong(
            "Room that is free again went unused: once x_j is done with, the layers before j have all the room again.",
            ((SECOND, "best(s, j - 1, left)"),),
        ),
        "the first place": Wrong(CHEAPEST, ((KEY, "lambda way: 0"),)),
        "one layer too few": Wrong(ADD_UP, ((WORK, "sum(costs[s + 1:j])"),)),
        "the first layer alone": Wrong(ADD_UP, ((WORK, "costs[s]"),)),
        "counts layers": Wrong(
            "Your plan is best only where all layers cost the same: add up the costs of the layers that run again.",
            ((WORK, "(j - s)"),),
        ),
        "costs from the end": Wrong(
            "The costs were taken in another order: costs[i] belongs to layer i.",
            (before("costs = costs[::-1]"),),
        ),
        "sizes for costs": Wrong(
            "Sizes and costs are swapped: sizes[i] weighs in the budget, costs[i] is the work.",
            (before("sizes, costs = costs, sizes"),),
        ),
        "sizes from the end": Wrong(
            "The sizes were taken in another order: sizes[i] belongs to the input of layer i.",
            (before("sizes = sizes[::-1]"),),
        ),
        "sizes forgotten": Wrong(
            "States were counted, not weighed: take sizes[i] off the room, not 1.",
            (before("sizes = [1] * len(sizes)"),),
        ),
        "as many as fit": Wrong(
            "States were counted as slots of one size: they weigh differently, so add up the sizes of those that are kept.",
            (before("budget, sizes = budget * len(sizes) // sum(sizes) or 1, [1] * len(sizes)"),),
        ),
        "as many as the largest": Wrong(
            "States were counted as slots of one size: they weigh differently, so add up the sizes of those that are kept.",
            (before("budget, sizes = max(1, budget // max(sizes)), [1] * len(sizes)"),),
        ),
        "takes off the wrong size": Wrong(
            "Another state's size was taken off the room: while the layers from j on run, x_s is kept beside x_j.",
            ((LEFT, "left = room - sizes[t]"),),
        ),
        "no look at x_j": Wrong(
            "x_j is kept where it has no room: see first that it fits beside x_s.",
            ((FITS, "if left >= 0:"),),
        ),
        "a memory for all chains": Wrong(
            "This chain was not planned for its own sizes and costs: plan anew in each call, and remember nothing between calls.",
            (
                ("def answer(", "from functools import lru_cache\nMEMORY = {}\ndef answer("),
                (
                    "    def best(s, t, room):",
                    "    def best(s, t, room):\n        if (s, t, room) not in MEMORY:\n"
                    "            MEMORY[s, t, room] = found(s, t, room)\n        return MEMORY[s, t, room]\n    def found(s, t, room):",
                ),
            ),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        def scene(name, sizes, costs, budget):
            def run():
                return shown(answer(list(sizes), list(costs), budget), sizes, costs, budget)

            return Scene(name, run)

        n, long = draw.randint(9, 11), 12
        for layers, slots in (
            (1, 1),
            (2, 1),
            (4, 1),
            (3, 2),
            (4, 2),
            (5, 5),
            (n, draw.randint(2, 3)),
            (long, draw.randint(3, 5)),
            (long, long - 3),
        ):
            yield scene(
                f"{counted(layers, 'equal layer')} and {counted(slots, 'slot')}",
                (1,) * layers,
                (1,) * layers,
                slots,
            )
        for dear in (2, draw.randint(4, 6), 8):
            costs = [draw.randint(6, 12) if i == dear else 1 for i in range(10)]
            yield scene(f"sizes of 1, costs {costs}, budget 3", (1,) * 10, costs, 3)
        for seed in draw.sample(CHAINS, 8):
            sizes, costs, budget = chain(seed)
            unit, work = draw.randint(1, 3), draw.randint(1, 3)
            sizes, costs = [unit * size for size in sizes], [work * cost for cost in costs]
            budget *= unit
            yield scene(f"sizes {sizes}, costs {costs}, budget {budget}", sizes, costs, budget)


# in the five that are left out a state is best dropped before its own backward
CHAINS = sorted(set(range(400)) - {40, 45, 169, 223, 271})


def chain(seed: int) -> tuple[list[int], list[int], int]:
    """Sizes, costs and a budget of 6 to 9 unequal layers."""
    draw = random.Random(seed)
    n = draw.randint(6, 9)
    sizes, costs = ([draw.randint(1, 9) for _ in range(n)] for _ in "sc")
    return sizes, costs, draw.randint(sizes[0] + min(sizes[1:]), sum(sizes) * 2 // 3)


def shown(plan, sizes, costs, budget) -> dict:
    """What a plan does; why it cannot, where it cannot run."""
    n = len(sizes)
    if not isinstance(plan, Iterable):
        kind = "nothing" if plan is None else f"a {type(plan).__name__}"
        return {"how it runs": f"not at all, it is {kind}"}
    plan = list(plan)
    try:
        ops = planned(plan, n)
    except Impossible as error:
        return {"how it runs": str(error)}
    alive, records = 0, []
    for op in ops:
        alive += {"F": 1, "B": -1, "A": 0}[op.action.kind]
        records.append(alive)
    kept = max(sum(sizes[i] for i in op.keep) for op in ops)
    weighed = Chain.of((*sizes, 0), (0,) * n, costs, saves_input=(False,) * n)
    return {
        "how it runs": "to the end",
        "records alive at once": max(records),
        "kept above the budget": max(0, kept - budget),
        "work done twice": extra_cost(ops, weighed),
    }


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
