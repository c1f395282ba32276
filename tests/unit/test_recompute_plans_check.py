"""The check of an exercise names each mistake, and takes right answers."""

from functools import cache

import pytest

from bigtrain_lab.checks import plan_findings
from bigtrain_lab.recompute import A, B, F
from bigtrain_lab.recompute_optimum import best_plan


def by_recursion(sizes, costs, budget, lend=0, everything=False):
    """A student's answer, and with its mistakes."""
    @cache
    def best(s, t, room):
        if s == t:
            return 0, (F(t), B(t))
        ways = [(float("inf"), ())]
        for j in range(s + 1, t + 1) if room - sizes[s] >= 0 else ():
            up, down = best(j, t, room - sizes[s]), best(s, j - 1, room)
            if j == t or room - sizes[s] - sizes[j] >= 0:
                ways.append((sum(costs[s:j]) + up[0] + down[0], (*map(A, range(s, j)), *up[1], *down[1])))
        return min(ways, key=lambda way: way[0])

    return list(best(0, len(sizes) - 1, budget + lend)[1])


def emptied(sizes, costs, budget):
    plan = by_recursion(tuple(sizes), tuple(costs), budget)
    sizes.clear(), costs.clear()
    return plan


def segments(sizes, costs, budget):
    """Chen's plan: kept inputs, each segment recorded as a whole."""
    n, k = len(sizes), max(1, len(sizes) // budget)
    order, starts = list(map(A, range(range(0, n, k)[-1]))), range(0, n, k)
    for start in reversed(starts):
        layers = range(start, min(start + k, n))
        order += [*map(F, layers), *map(B, reversed(layers))]
    return order


def halves(sizes, low, high, room):
    """Keeps the state in the middle while there is room, and runs from the last one kept where there is none."""
    middle, left = (low + high + 1) // 2, room - sizes[low]
    if low == high or left < sizes[middle]:
        return [action for t in range(high, low - 1, -1) for action in (*map(A, range(low, t)), F(t), B(t))]
    return [*map(A, range(low, middle)), *halves(sizes, middle, high, left), *halves(sizes, low, middle - 1, room)]


MISTAKES = {
    "all_recorded": (lambda s, c, b: [*map(F, range(len(s))), *map(B, reversed(range(len(s))))], "You recorded all layers and ran none again"),
    "equal_cost_plan": (lambda s, c, b: by_recursion(s, [1] * len(c), b), "Best for equal layers; layer 2 here costs 9 times the others"),
    "slot_off_by_one": (lambda s, c, b: by_recursion(s, c, b, lend=1), r"Your plan holds 2 states \(x_0, x_\d\) after \dA0, and there is 1 slot: the input occupies one"),
    "recompute_all_at_once": (segments, "Segments were refilled together: for 2 equal layers, 1 slot 2 records are alive at once"),
    "sizes_forgotten": (lambda s, c, b: by_recursion([1] * len(s), c, b), "subtract a state's size from the budget"),
    "one_slot_unused": (lambda s, c, b: by_recursion(s, c, max(1, b - 1)), "one slot more fits"),
    "keep_none": (lambda s, c, b: [a for t in reversed(range(len(s))) for a in (*map(A, range(t)), F(t), B(t))], "your plan does work of 6 twice, and"),
    "one_advance_too_many": (lambda s, c, b: [*best_plan(s, c, b)[:-2], A(0), F(0), B(0)], "For 1 equal layer, 1 slot your plan does work of 1 twice, and 0 is enough"),
    "no_input": (lambda s, c, b: [a for t in reversed(range(len(s))) for a in (F(t), B(t))], "your plan cannot run. 1F0 needs x_1"),
    "nothing": (lambda s, c, b: None, "you returned NoneType: return a list"),
    "free_input": (lambda s, c, b: by_recursion([0, *s[1:]], c, b), "there is 1 slot: the input occupies one"),
    "costs_from_the_end": (lambda s, c, b: by_recursion(s, c[::-1], b), "your plan does work of 32 twice, and 24 is enough. Try every place"),
    "halves": (lambda s, c, b: halves(s, 0, len(s) - 1, b), "For 5 equal layers, 5 slots your plan does work of 5 twice, and 4 is enough. Try every place"),
    "backwards_in_order": (lambda s, c, b: [*map(F, range(len(s))), *map(B, range(len(s)))], "0B0 comes before the backward of layer 1"),
    "no_last_backward": (lambda s, c, b: best_plan(s, c, b)[:-1], "The backward of layer 0 is missing"),
    "words": (lambda s, c, b: list(map(str, best_plan(s, c, b))), "A plan is an order of A.i., F.i. and B.i., and here is '0F0'"),
    "yields_the_equal_plan": (lambda s, c, b: iter(by_recursion(s, [1] * len(c), b)), "Best for equal layers; layer 2 here costs 9 times the others"),
    "raises_for_six": (lambda s, c, b: [*map(F, range(len(s))), *map(B, reversed(range(len(s))))] if len(s) != 6 else s[99],
                       "Segments were refilled together|You recorded all layers"),
    "raises": (lambda s, c, b: s[99], "your function raised IndexError"),
}


@pytest.mark.parametrize("answer", [
    pytest.param(best_plan, marks=pytest.mark.slow), by_recursion, lambda *case: iter(by_recursion(*case)), lambda s, c, b: emptied(s, c, b)],
    ids=["ours", "recursion", "as it yields", "empties its lists"])
def test_a_right_answer_is_taken(answer):
    assert plan_findings(answer) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named(name):
    import re
    answer, sentence = MISTAKES[name]
    (found,) = plan_findings(answer)
    assert re.search(sentence, found), found
