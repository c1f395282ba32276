"""What is wrong with a `best_plan` of one's own: the mistake, then the mend.

    best_plan(sizes, costs, budget) -> [A(0), A(1), F(2), B(2), ...]

Layer i's input x_i weighs sizes[i], its forward costs costs[i]. All states that the plan keeps, the chain's input among them, may
weigh up to `budget`; the state in hand and the one record are not counted. Right is a plan that runs, stays within the budget,
and does no more work twice than a search of all plans. Chains for which the recursion that keeps a state until its own backward is
not best are left out: a better answer is taken, and nobody is asked for it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..core import Impossible
from ..recompute import Chain, Op, extra_cost, planned
from ..recompute_optimum import recursive
from ..recompute_search import cheapest
from ..schedule import Action


class Case(NamedTuple):
    sizes: tuple[int, ...]
    costs: tuple[int, ...]
    budget: int

    @property
    def chain(self) -> Chain:
        return Chain.of((*self.sizes, 0), (0,) * len(self.sizes), self.costs, saves_input=(False,) * len(self.sizes))

    def __str__(self) -> str:
        n = len(self.sizes)
        if set(self.sizes) == set(self.costs) == {1}:
            return f"{n} equal layer{'s' * (n > 1)}, {self.budget} slot{'s' * (self.budget > 1)}"
        return f"sizes {list(self.sizes)}, costs {list(self.costs)}, budget {self.budget}"


def plan_findings(best_plan: Callable[[Sequence[int], Sequence[int], int], Sequence[Action]], seed: int = 0) -> list[str]:
    """The first mistake of `best_plan` of each sort; empty when it is right for up to 12 unequal layers."""
    for case in cases(seed):
        try:
            answer = asked(best_plan, case.sizes, case.costs, case.budget)
        except Exception as error:  # a student's code: whatever it raises is a finding
            return [f"For {case} your function raised {type(error).__name__}: {error}."]
        if found := wrong(case, answer, best_plan):
            return [found]
    return []


def asked(best_plan: Callable, sizes: Sequence[int], costs: Sequence[int], budget: int):
    """Its answer for lists of its own; what it yields, as a list."""
    answer = best_plan(list(sizes), list(costs), budget)
    return list(answer) if isinstance(answer, Iterator) else answer


def also(best_plan: Callable, sizes: Sequence[int], costs: Sequence[int], budget: int) -> list[Action]:
    """Its answer for another chain, to tell a mistake by; none where it raises."""
    try:
        return list(asked(best_plan, sizes, costs, budget))
    except Exception:
        return []


def cases(seed: int) -> Iterator[Case]:
    """Simple ones first, so that the first finding is the easiest to understand."""
    for layers, slots in ((1, 1), (2, 1), (4, 1), (4, 2), (5, 5), (10, 3), (12, 4), (12, 8)):
        yield Case((1,) * layers, (1,) * layers, slots)
    for dear in (2, 5, 8):
        yield Case((1,) * 10, (1,) * dear + (9,) + (1,) * (9 - dear), 3)
    dice, left = random.Random(seed), 5
    while left:
        n = dice.choice((6, 7, 8, 12))
        sizes, costs = (tuple(dice.randint(1, 9) for _ in range(n)) for _ in "sc")
        case = Case(sizes, costs, dice.randint(sizes[0] + max(sizes), sum(sizes) * 2 // 3))
        (found,) = recursive(case.chain, case.budget, early=False)
        if extra_cost(found, case.chain) == least(case):
            left -= 1
            yield case


def least(case: Case) -> float:
    """The least work done twice, by a search of all plans."""
    return extra_cost(planned(cheapest(case.chain, case.budget, early=False, at_most=float("inf")), len(case.sizes)), case.chain)


def wrong(case: Case, answer, best_plan: Callable) -> str:
    """What is wrong with one answer; empty if nothing is."""
    try:
        ops = planned(answer, len(case.sizes))
    except Impossible as error:
        return f"For {case} your plan cannot run. {error}"
    except TypeError:
        return f"For {case} you returned {type(answer).__name__}: return a list of A(i), F(i) and B(i)."
    for found in (together(case, ops, best_plan), too_much(case, ops)):
        if found:
            return found
    cost, best = extra_cost(ops, case.chain), least(case)
    if cost <= best:
        return ""
    start = f"For {case} your plan does work of {cost:g} twice, and {best:g} is enough"
    if len(set(case.costs)) == 2 and list(answer) == also(best_plan, case.sizes, [1] * len(case.sizes), case.budget):
        dear = max(range(len(case.costs)), key=case.costs.__getitem__)
        return f"{start}. Best for equal layers; layer {dear} here costs {max(case.costs)} times the others: add up costs, do not count layers."
    spare = case.budget - max(kept_bytes(case, ops))
    unused = f" {spare} of the budget is never used: one slot more fits." if spare >= max(case.sizes) and len(case.sizes) > case.budget else ""
    return f"{start}.{unused} Try every place for the next kept state, with what is then left of the budget, and take the cheapest."


def together(case: Case, ops: tuple[Op, ...], best_plan: Callable) -> str:
    """Records that wait for their backward."""
    alive = most = 0
    for op in ops:
        alive += (op.action.kind == "F") - (op.action.kind == "B")
        most = max(most, alive)
    if most == len(case.sizes) > 1 and all(action.kind != "A" for action in also(best_plan, [1] * 6, [1] * 6, 2)):
        return (f"You recorded all layers and ran none again: for {case} that keeps {most} records, as plain training does. Record a layer only "
                "when its own backward comes next.")
    if most > 1:
        return (f"Segments were refilled together: for {case} {most} records are alive at once, each with the state it began from. Record a layer only "
                "when its own backward comes next.")
    return ""


def kept_bytes(case: Case, ops: tuple[Op, ...]) -> list[int]:
    return [sum(case.sizes[i] for i in op.keep) for op in ops]


def too_much(case: Case, ops: tuple[Op, ...]) -> str:
    kept = kept_bytes(case, ops)
    if max(kept) <= case.budget:
        return ""
    op = ops[kept.index(max(kept))]
    states = ", ".join(f"x_{i}" for i in op.keep)
    if set(case.sizes) == {1}:
        hint = ": the input occupies one" if max(kept) == case.budget + 1 else ""
        return f"Your plan holds {max(kept)} states ({states}) after {op.action}, and there {'are' if case.budget > 1 else 'is'} {case.budget} slot{'s' * (case.budget > 1)}{hint}."
    return f"For {case} your plan keeps {states} after {op.action}, {max(kept)} in all: subtract a state's size from the budget of what comes after it."
