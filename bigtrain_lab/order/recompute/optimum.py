"""The cheapest recompute plan that fits into a budget of memory, for layers of unequal cost and
size, by dynamic programming.

    C(s, t, m)   least cost of advances to run the layers s..t backward, x_s kept, with m bytes for
                 x_s and all that is kept beside

    C(t, t, m) = 0   where record(t) <= m, else infinite
    C(s, t, m) = min over j of   f_s + ... + f_(j-1)  +  C(j, t, m - x_s)  +  C(s, j-1, m)
                                 keep x_j next, then come back to x_s
              or, recording s at once,                   C(s+1, t, m - record(s))

Cost O(n^3 k) for n layers on k levels of memory; slices of the chain that are alike are worked out
once, which makes it O(n^2 k) for equal layers. The levels are all sums of the layers' bytes, and
then the recursion is exact and one pass answers every budget; where those are too many to tabulate,
they are LEVELS even steps below the budget, and all rounding is towards less memory.

The recursion keeps a state until its own backward. That is best for equal layers (Revolve), but not
always for others: where a later layer leaves little room, it can pay to drop a state early and to
make it again. `optimum` therefore also asks search.py: among all plans there are for up
to ALL layers, among all that keep only inputs for up to INPUTS layers. Source: Griewank and Walther
2000 (ACM TOMS 26(1)); Beaumont et al. 2019 (arXiv:1911.13214), for records that are kept early.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from ...core import refuse, size
from ...core.later import later
from .plan import A, Action, B, Chain, F, Op, each_anew, extra_cost, peak_bytes, planned
from .search import cheapest

with later():
    import numpy as np

ENTRIES = 2_500_000  # of a table, 20 MB
LEVELS = 1000
ALL, INPUTS = 8, 12


@lru_cache(maxsize=256)
def optimum(chain: Chain, budget_bytes: int, early: bool = True) -> tuple[Op, ...]:
    """The cheapest plan found whose peak is within the budget. `early`: whether a layer may be
    recorded before its backward is due.

    Impossible where no plan fits, with the smallest budget that one does.
    """
    refuse(
        (
            budget_bytes < (least := smallest_budget(chain, early)),
            f"A budget of {size(budget_bytes)} is below the smallest peak that any plan reaches,"
            f" {size(least)}: give at least that, or make the layers or the batch smaller.",
        )
    )
    n = chain.layers
    found = [planned(each_anew(0, n), n), *recursive(chain, budget_bytes, early)]
    best = min(
        (ops for ops in found if peak_bytes(ops, chain) <= budget_bytes),
        key=lambda ops: extra_cost(ops, chain),
    )
    if n <= INPUTS and any(likeness(chain, i) != likeness(chain, 0) for i in range(n)):
        if cheaper := cheapest(chain, budget_bytes, early and n <= ALL, extra_cost(best, chain)):
            best = planned(cheaper, n)
    return best


def smallest_budget(chain: Chain, early: bool = True) -> int:
    """The least memory that a plan needs: the input and the largest record. Where layer 0 does not
    save its input its record may stand in for it: then the least that the recursion reaches."""
    least = peak_bytes(planned(each_anew(0, chain.layers), chain.layers), chain)
    if not early or chain.saves_input[0]:
        return least
    stairs = recursion(chain, least, early)
    return min([least, *(int(m) for m, cost in zip(stairs.levels, stairs.costs) if cost < np.inf)])


def frontier(chain: Chain, early: bool = True) -> list[tuple[int, float]]:
    """(memory, least extra cost within it) of the recursion, from the smallest budget up to keeping
    all; a step for each cost."""
    stairs = recursion(chain, enough(chain, early), early)
    return [
        (int(m), float(cost))
        for m, cost, before in zip(stairs.levels, stairs.costs, [np.inf, *stairs.costs])
        if cost < before
    ]


def recursive(chain: Chain, budget_bytes: int, early: bool) -> list[tuple[Op, ...]]:
    """The recursion's plan. On even levels, which round memory away, by bisection also those of
    higher levels that still fit."""
    stairs = recursion(chain, budget_bytes, early)
    if stairs.exact:
        place = stairs.place(budget_bytes)
        return [planned(stairs.order(place), chain.layers)] if stairs.costs[place] < np.inf else []
    found, low, high = [], 0, len(stairs.levels)
    while low < high:
        place, ops = (low + high) // 2, None
        if stairs.costs[place] < np.inf:
            ops = planned(stairs.order(place), chain.layers)
        if ops is None or peak_bytes(ops, chain) <= budget_bytes:
            low = place + 1
            found += [ops] if ops else []
        else:
            high = place
    return found


def recursion(chain: Chain, budget_bytes: int, early: bool) -> "Recursion":
    """One for all budgets where that is exact, else one for this budget, with room for what
    rounding takes."""
    whole = enough(chain, early)
    return stairs_up_to(
        chain,
        whole if all_sums(chain, whole) else budget_bytes + budget_bytes * chain.layers // LEVELS,
        early,
    )


def enough(chain: Chain, early: bool) -> int:
    """Memory in which nothing better can be done with more: all records, or all states and any
    record beside them."""
    records = [chain.record(i) for i in range(chain.layers)]
    return (
        sum(records) - sum(shared(chain, i) for i in range(chain.layers))
        if early
        else sum(chain.states) + max(records)
    )


class Recursion:
    """C of a chain, for every slice and level of memory, for all budgets up to `limit_bytes`.

    `levels` are the amounts of memory; `exact`: whether they are all that matter.
    """

    def __init__(self, chain: Chain, limit_bytes: int, early: bool = True):
        n, self.chain, self.early = chain.layers, chain, early
        sums = all_sums(chain, limit_bytes)
        self.exact = bool(sums)
        self.levels = np.array(
            sums if self.exact else [limit_bytes * i // LEVELS for i in range(LEVELS + 1)]
        )
        self._beside = [self._less(size) for size in chain.states[:n]]
        self._recorded = [self._less(chain.record(i) - shared(chain, i)) for i in range(n)]
        self._ahead = np.array([0, *accumulate(chain.forwards)], dtype=float)
        self._costs: dict[tuple[int, int], np.ndarray] = {}
        for (s, t), like_next in slices(chain).items():
            self._costs[s, t] = self._costs[s + 1, t + 1] if like_next else self._worked_out(s, t)

    def _less(self, size: int) -> "np.ndarray":
        """For each level, where among the levels the memory lies that is left when `size` bytes are
        taken; -1, the last: too little."""
        return np.append(np.searchsorted(self.levels, self.levels - size, side="right") - 1, -1)

    def _worked_out(self, s: int, t: int) -> "np.ndarray":
        """C(s, t, .) on the levels, and one entry more at the end: infinite, for the place -1."""
        if s == t:
            return np.append(np.where(self.levels >= self.chain.record(t), 0, np.inf), np.inf)
        best, *others = self._ways(s, t, slice(None))
        for cost in others:
            np.minimum(best, cost, out=best)
        return best

    def _ways(self, s: int, t: int, at) -> "Iterator[np.ndarray]":
        """The cost of each way to begin on s..t at these levels: keep x_j next for j = s+1 .. t,
        then, where allowed, record s at once."""
        left = self._beside[s][at]
        yield from (
            self._costs[j, t][left] + self._costs[s, j - 1][at] + (self._ahead[j] - self._ahead[s])
            for j in range(s + 1, t + 1)
        )
        if self.early:
            yield self._costs[s + 1, t][self._recorded[s][at]]

    @property
    def costs(self) -> "np.ndarray":
        """The least cost of advances for the whole chain, at each level."""
        return self._costs[0, self.chain.layers - 1][:-1]

    def place(self, budget_bytes: int) -> int:
        """Where the budget lies among the levels."""
        return int(np.searchsorted(self.levels, budget_bytes, side="right")) - 1

    def order(self, place: int, s: int = 0, t: int | None = None) -> Iterator[Action]:
        """The passes of a cheapest plan at this place among the levels."""
        t = self.chain.layers - 1 if t is None else t
        if s == t:
            yield from (F(t), B(t))
            return
        best = int(np.argmin(list(self._ways(s, t, place))))
        if best == t - s:
            yield F(s)
            yield from self.order(self._recorded[s][place], s + 1, t)
            yield B(s)
        else:
            j = s + 1 + best
            yield from map(A, range(s, j))
            yield from self.order(self._beside[s][place], j, t)
            yield from self.order(place, s, j - 1)


stairs_up_to = lru_cache(maxsize=8)(Recursion)


def shared(chain: Chain, layer: int) -> int:
    """Bytes that this layer's record and the next one's have in common: a state that one saves as
    output, the other as input."""
    both = layer + 1 < chain.layers and chain.saves_output[layer] and chain.saves_input[layer + 1]
    return chain.states[layer + 1] if both else 0


def likeness(chain: Chain, layer: int) -> tuple:
    """Two layers of one likeness stand for each other in the recursion."""
    return (chain.states[layer], chain.record(layer), shared(chain, layer), chain.forwards[layer])


def slices(chain: Chain) -> dict[tuple[int, int], bool]:
    """Every slice (s, t), shorter ones first, and whether the slice one layer on is like it, layer
    by layer."""
    n = chain.layers
    same = [i + 1 < n and likeness(chain, i) == likeness(chain, i + 1) for i in range(n)]
    return {
        (s, s + length): all(same[s : s + length + 1])
        for length in range(n)
        for s in reversed(range(n - length))
    }


@lru_cache(maxsize=8)
def all_sums(chain: Chain, limit: int) -> tuple[int, ...]:
    """Every amount up to the limit that some layers' states and records can make; none where a
    table of them is too large."""
    sums, most = {0}, ENTRIES // sum(not like_next for like_next in slices(chain).values())
    for i in range(chain.layers):
        sizes = {chain.states[i], chain.record(i), chain.record(i) - shared(chain, i)}
        sums |= {total + size for size in sizes for total in sums if total + size <= limit}
        if len(sums) > most:
            return ()
    return tuple(sorted(sums))


def best_plan(sizes: Sequence[int], costs: Sequence[float], budget: int) -> list[Action]:
    """The exercise's answer: layer i's input weighs sizes[i] and its forward costs costs[i]; what
    is kept, the chain's input included, may weigh up to `budget`. The state on its way and the one
    record are not counted, as in Revolve.
    """
    chain = Chain.of((*sizes, 0), (0,) * len(sizes), costs, saves_input=(False,) * len(sizes))
    return [op.action for op in optimum(chain, budget, early=False)]
