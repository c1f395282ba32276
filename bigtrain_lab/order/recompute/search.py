"""The cheapest recompute plan of all, found by looking at all: for short chains, where the
recursion may miss it.

The layers run backward one by one. Before layer b does, x_b is made anew from the nearest state
below that is there; on that sweep each layer may be recorded and each state kept, and what was kept
before may be dropped. What is held when b has run backward

    (states kept, layers recorded)        two sets, written as the bits of two numbers

is all that the rest depends on, so of the ways to one holding only the cheapest survives. Two
remarks keep the ways few: to make anything earlier than a sweep needs it gains nothing; and to keep
a state too many costs nothing, since it can be dropped, so only holdings are looked at that no
state can be added to. Cost: exponential in the number of layers. Source: a shortest path over live
sets; as an integer program in Jain et al. 2020, Checkmate (arXiv:1910.02653).
"""

from collections.abc import Iterator
from functools import cache
from itertools import chain as joined

from .plan import A, Action, B, Chain, F


def cheapest(chain: Chain, budget_bytes: int, early: bool, at_most: float) -> list[Action] | None:
    """The order of a plan that costs less than `at_most`, the cheapest there is; None where there
    is none."""
    bytes_held = measure(chain)
    best: dict[tuple[int, int], tuple[float, tuple]] = {
        (1, 0): (0, ())
    }  # holding -> cost, (the way before, the actions since)
    for b in reversed(range(chain.layers)):
        after: dict[tuple[int, int], tuple[float, tuple]] = {}
        for (states, records), (cost, way) in best.items():
            below = (1 << b) - 1
            for kept, recorded, more, actions in sweeps(
                chain, budget_bytes, early, b, states, records, bytes_held, at_most - cost
            ):
                holding = kept & below, recorded & below
                if holding not in after or cost + more < after[holding][0]:
                    after[holding] = cost + more, (way, (*actions, B(b)))
        best = undominated(after)
    if not best:
        return None
    parts, way = [], min(best.values(), key=lambda found: found[0])[1]
    while way:
        way, actions = way
        parts.append(actions)
    return list(joined.from_iterable(reversed(parts)))


def measure(chain: Chain):
    """bytes_held(states, records): of a holding, each storage once; and the states that are there,
    kept or in a record."""
    n = chain.layers

    @cache
    def bytes_held(states: int, records: int) -> tuple[int, int]:
        for i in range(n):
            if records >> i & 1:
                states |= chain.saves_input[i] << i | chain.saves_output[i] << i + 1
        held = sum(chain.saved[i] for i in range(n) if records >> i & 1) + sum(
            chain.states[i] for i in range(n + 1) if states >> i & 1
        )
        return held, states

    return bytes_held


def sweeps(
    chain: Chain,
    budget: int,
    early: bool,
    b: int,
    states: int,
    records: int,
    bytes_held,
    at_most: float,
) -> Iterator[tuple]:
    """All full holdings with which layer b can run backward: (states, records, cost of the
    advances, the actions)."""
    if records >> b & 1:
        yield states, records, 0, ()
        return
    there = bytes_held(states, records)[1] & ((2 << b) - 1)
    start = there.bit_length() - 1
    if start < 0:
        return

    def onward(i: int, kept: int, recorded: int, cost: float, actions: tuple) -> Iterator[tuple]:
        """From x_i in hand."""
        if cost >= at_most or bytes_held(kept, recorded)[0] > budget:
            return
        if i == b:
            held, all_there = bytes_held(kept, recorded | 1 << b)
            if held <= budget and not any(
                addable >> j & 1 and not all_there >> j & 1 and held + chain.states[j] <= budget
                for j in range(b)
            ):
                yield all_there, recorded, cost, (*actions, F(b))
            return
        for kind in "A" if recorded >> i & 1 or not early else "AF":
            more = (
                (cost + chain.forwards[i], (*actions, A(i)))
                if kind == "A"
                else (cost, (*actions, F(i)))
            )
            now = recorded | (kind == "F") << i
            yield from onward(i + 1, kept, now, *more)
            if i + 1 < b:
                yield from onward(i + 1, kept | 1 << i + 1, now, *more)

    addable = states | sum(1 << j for j in range(start + 1, b))
    for kept in subsets(states & ~bytes_held(0, records)[1]):
        yield from onward(start, kept, records, 0, ())


def subsets(bits: int) -> Iterator[int]:
    """All subsets of a set of bits."""
    part = bits
    while part:
        yield part
        part = (part - 1) & bits
    yield 0


def undominated(ways: dict) -> dict:
    """Without the holdings of which another has the same records and more states for no more cost;
    a state can be dropped, a record cannot."""
    kept: dict = {}
    for holding, found in sorted(
        ways.items(), key=lambda item: (item[1][0], -sum(bits.bit_count() for bits in item[0]))
    ):
        if not any(holding[0] & ~other[0] == 0 and holding[1] == other[1] for other in kept):
            kept[holding] = found
    return kept
