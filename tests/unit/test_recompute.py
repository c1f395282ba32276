"""Recompute plans: the papers' counts, what follows from an order, and an optimum that no search
beats."""

import heapq
import random
import re
from functools import partial
from itertools import chain as joined, combinations, count

import pytest

from bigtrain_lab.core import Impossible
from bigtrain_lab.order.recompute.optimum import (
    best_plan,
    enough,
    frontier,
    optimum,
    recursive,
    smallest_budget,
)
from bigtrain_lab.order.recompute.plan import (
    A,
    B,
    Chain,
    F,
    advances,
    extra_cost,
    live,
    peak_bytes,
    plan_of,
    planned,
    turn,
)
from bigtrain_lab.order.recompute.plans.revolve import Revolve, fewest_advances

# -- the numbers of the papers and the lesson ------------------------------------------------------


@pytest.mark.parametrize("slots, passes", [(1, 2016), (3, 258), (4, 200), (8, 137), (64, 63)])
def test_64_equal_layers_need_as_many_advances_as_revolve_counts(slots, passes):
    assert fewest_advances(64, slots) == passes
    # a record weighs nothing: what counts is the kept states, as Revolve counts
    chain = Chain.of((1,) * 65, (0,) * 64, saves_input=(False,) * 64)
    for ops in (plan_of(Revolve(slots), chain), optimum(chain, slots, early=False)):
        assert advances(ops) == passes and peak_bytes(ops, chain) <= slots


def test_the_formula_is_what_revolve_does_and_what_the_recursion_finds():
    assert fewest_advances(10, 3) == 15 and fewest_advances(100, 10) == 222  # the paper's
    for layers in range(1, 16):
        for slots in range(1, 6):
            passes = fewest_advances(layers, slots)
            assert advances(plan_of(Revolve(slots), Chain.equal(layers))) == passes
            assert (
                sum(a.kind == "A" for a in best_plan([7] * layers, [1] * layers, 7 * slots + 6))
                == passes
            )


@pytest.mark.parametrize(
    "name, passes, peak",
    [
        ("keep-all", 0, 64 * 34),
        ("keep-none", 2016, 2 + 34),
        ("every-8", 56, 7 * 2 + 8 * 34),
        ("sqrt", 56, 7 * 2 + 8 * 34),
        ("halving", 192, 6 * 2 + 34),
        ("every-1", 63, 63 * 2 + 34),
    ],
)
def test_plans_by_name_on_64_equal_layers(name, passes, peak):
    """A state of 2 and a record of 34 = 2 + 32, the proportions of a transformer layer without its
    attention square."""
    chain = Chain.equal(64, state=2, saved=32)
    ops = plan_of(name, chain)
    assert (advances(ops), peak_bytes(ops, chain)) == (passes, peak)
    assert (
        peak_bytes(optimum(chain, peak), chain) <= peak and advances(optimum(chain, peak)) <= passes
    )


def test_a_budget_buys_every_step_from_keep_none_to_keep_all():
    chain = Chain.equal(64, state=2, saved=32)
    steps = frontier(chain)
    assert steps[0] == (36, 2016) and steps[-1] == (64 * 34, 0)
    assert steps == sorted(steps) and [c for _, c in steps] == sorted(
        {c for _, c in steps}, reverse=True
    )
    for memory, cost in steps[::31]:
        assert (peak_bytes(optimum(chain, memory), chain), advances(optimum(chain, memory))) == (
            memory,
            cost,
        )
        assert memory == 36 or advances(optimum(chain, memory - 1)) > cost


# -- what follows from an order --------------------------------------------------------------------


def test_what_must_be_kept_follows_from_the_order():
    ops = plan_of("every-2", Chain.equal(4))
    assert [(str(op.action), op.keep) for op in ops] == [
        ("0A0", (0,)),
        ("1A0", (0,)),
        ("2F0", (0,)),
        ("3F0", (0,)),
        ("3B0", (0,)),
        ("2B0", (0,)),
        ("0F1", ()),
        ("1F1", ()),
        ("1B1", ()),
        ("0B1", ()),
    ]
    assert turn(ops, 4) == 4


def test_a_storage_counts_once_however_many_hold_it():
    chain = Chain.of((1, 10, 100, 1000), (1, 2, 3), saves_output=(False, True, False))
    assert live(plan_of("keep-all", chain), chain) == [
        1 + 1,
        1 + 1 + 10 + 2 + 100,
        112 + 1 + 1 + 3,
        114,
        2,
        0,
    ]
    shared = live(planned([F(0), A(1), F(2), B(2), F(1), B(1), B(0)], 3), chain)
    assert shared == [2 + 10, 2 + 10, 2 + 10 + 100 + 3, 2 + 10, 2 + 10 + 2 + 100, 2, 0]


EQUAL = Chain.equal(64, state=2, saved=32)


@pytest.mark.parametrize(
    "make, sentence",
    [
        *(
            (partial(planned, order, 2), re.escape(why))
            for order, why in (
                ([F(1)], "1F0 needs x_1, which is neither kept nor just made"),
                (
                    [A(0), A(1), B(1)],
                    "1B0 comes before a recorded pass of layer 1: put F(1) before B(1)",
                ),
                ([F(0), F(1), B(0)], "0B0 comes before the backward of layer 1"),
                ([F(0), F(1), B(1)], "The backward of layer 0 is missing"),
                ([F(0), F(1), B(1), F(0)], "0F1 records layer 0 a second time"),
                ([F(0), F(1), B(1), A(1), B(0)], "1A1 runs layer 1 after its backward"),
                (
                    [F(0), F(1), F(2)],
                    "2F0 is no operation on this chain: write A, F or B of the layers 0 to 1",
                ),
                (["0F0"], "A plan is an order of A(i), F(i) and B(i)"),
            )
        ),
        (lambda: plan_of("optimal", EQUAL, 35), "35 B is below the smallest peak .* 36 B"),
        (lambda: plan_of("optimal", EQUAL), "chooses by a budget of memory"),
        (lambda: plan_of("every-0", EQUAL), "k is 0"),
        (lambda: plan_of("revolve", EQUAL, 35), "Revolve needs a slot"),
        (lambda: plan_of("every", EQUAL), "There is no recompute called 'every'"),
        (lambda: Chain.of((1, 1), (1, 1)), "needs 3 states"),
        (lambda: Chain.of((1, 1), (-1,)), "saved hold -1"),
    ],
)
def test_orders_and_settings_that_cannot_be_are_refused(make, sentence):
    with pytest.raises(Impossible, match=sentence):
        make()


# -- the optimum, held to an independent search ----------------------------------------------------


def weigh(chain, kept, records):
    states = {
        *kept,
        *(r for r in records if chain.saves_input[r]),
        *(r + 1 for r in records if chain.saves_output[r]),
    }
    return sum(chain.saved[r] for r in records) + sum(chain.states[i] for i in states)


def shortest_path(chain, budget, early=True):
    """Dijkstra, one operation at a time, over (next backward, states kept, state in hand, layers
    recorded): every plan there is."""
    start = (chain.layers - 1, frozenset({0}), 0, frozenset())
    best, heap, tie = {start: 0}, [(0, 0, start)], count(1)
    while heap:
        cost, _, node = heapq.heappop(heap)
        b, kept, hand, records = node
        if b < 0:
            return cost
        if best[node] < cost:
            continue
        moves = []
        if b in records:
            moves.append((b - 1, kept, None, records - {b}, 0))
        for i in () if b in records else {*kept, hand} - {None}:
            if i < b:
                moves.append((b, kept | {i + 1}, i + 1, records, chain.forwards[i]))
            if i not in records and (i == b or early and i < b):
                moves.append((b, kept | {i + 1}, i + 1, records | {i}, 0))
        for next_b, there, in_hand, held, more in moves:
            there = [i for i in there if i <= next_b]
            for keep in joined.from_iterable(combinations(there, k) for k in range(len(there) + 1)):
                after = (
                    next_b,
                    frozenset(keep),
                    in_hand if in_hand is not None and in_hand <= next_b else None,
                    held,
                )
                if weigh(chain, keep, held) <= budget and cost + more < best.get(
                    after, float("inf")
                ):
                    best[after] = cost + more
                    heapq.heappush(heap, (cost + more, next(tie), after))
    return float("inf")


def unequal(dice, n, simple=False):
    return Chain.of(
        [dice.randint(1, 9) for _ in range(n + 1)],
        [dice.choice([0, dice.randint(0, 20)]) for _ in range(n)],
        [dice.randint(1, 9) for _ in range(n)],
        saves_input=[simple or dice.random() < 0.7 for _ in range(n)],
        saves_output=[not simple and dice.random() < 0.3 for _ in range(n)],
    )


@pytest.mark.parametrize(
    "n, tries, early, seed",
    [
        (3, 60, True, 1),
        (4, 50, True, 2),
        (5, 5, True, 5),
        (5, 40, False, 3),
        (6, 6, False, 4),
        pytest.param(4, 150, True, 4, marks=pytest.mark.slow),
        pytest.param(5, 30, True, 5, marks=pytest.mark.slow),
        pytest.param(7, 10, False, 7, marks=pytest.mark.slow),
    ],
)
def test_no_plan_at_all_is_cheaper(n, tries, early, seed):
    dice = random.Random(seed)
    for at in range(tries):
        chain = unequal(dice, n, simple=at % 2)
        least = smallest_budget(chain, early)
        budget = dice.randint(least, max(least, enough(chain, early)))
        ops = optimum(chain, budget, early)
        assert peak_bytes(ops, chain) <= budget
        assert extra_cost(ops, chain) == shortest_path(chain, budget, early), (chain, budget)


def test_a_state_that_one_layer_saves_as_output_and_the_next_as_input_is_paid_once():
    chain = Chain.of((4,) * 15, (1,) * 14, saves_output=(True,) * 14)
    assert enough(chain, True) == 14 + 15 * 4 and advances(optimum(chain, enough(chain, True))) == 0
    assert frontier(chain)[-1] == (enough(chain, True), 0)


def test_the_recursion_alone_would_lose_here():
    """x_1 is small and saves much, until layer 2, whose record leaves no room for it: drop it
    then."""
    chain = Chain.of((3, 2, 8, 3, 4), (0, 13, 17, 17), (8, 6, 2, 4))
    assert extra_cost(recursive(chain, 29, True)[0], chain) == 30
    assert extra_cost(optimum(chain, 29), chain) == shortest_path(chain, 29) == 22
    assert min(cost for memory, cost in frontier(chain) if memory <= 29) == 30, (
        "the line of the picture is the recursion's, as it says"
    )


@pytest.mark.slow
def test_sizes_of_real_models_stay_within_the_budget():
    """64 unequal layers have too many sums: levels are rounded, and the plan is measured by its
    true peak."""
    dice = random.Random(7)
    chain = Chain.of(
        [dice.randint(10**5, 10**6) for _ in range(65)],
        [dice.randint(10**5, 10**7) for _ in range(64)],
        [dice.randint(1, 9) for _ in range(64)],
    )
    whole, costs = enough(chain, True), []
    for share in (0.1, 1):
        ops = optimum(chain, int(whole * share))
        assert peak_bytes(ops, chain) <= whole * share
        costs.append(extra_cost(ops, chain))
    assert costs == sorted(costs, reverse=True) and costs[-1] == 0
    assert peak_bytes(optimum(chain, smallest_budget(chain)), chain) == smallest_budget(chain)
