"""Revolve: with s slots for kept states, the chain's input in one of them, the fewest advances
there can be for n equal layers.

    t(n, s) = r n - C(s+r, s+1)        r the least number with C(s+r, s) >= n: no layer advances
                                       more than r times

    t(64, 1) = 2016     t(64, 3) = 258     t(64, 4) = 200     t(64, 8) = 137     t(64, 64) = 63

Keep the state j layers on, where j makes  j + t(n-j, s-1) + t(j, s)  least; do the rest with a slot
                                                                      less, then come back.
One record is alive at a time, and the state on its way needs no slot. Unequal layers are counted as
the heaviest of them. Source: Griewank and Walther 2000 (ACM TOMS 26(1)), section 2.
"""

from dataclasses import dataclass
from math import comb

from ....core import refuse
from ..plan import A, B, F, Recompute, each_anew


def fewest_advances(layers: int, slots: int) -> int:
    """t(n, s)."""
    repeats = 0
    while comb(slots + repeats, slots) < layers:
        repeats += 1
    return repeats * layers - comb(slots + repeats, slots + 1)


def revolve(start: int, end: int, slots: int):
    """The layers start .. end-1, run backward with the state before them in the first of the
    slots."""
    if slots == 1:
        yield from each_anew(start, end)
    elif end - start > 1:
        n = end - start
        j = min(
            range(1, n),
            key=lambda j: j + fewest_advances(n - j, slots - 1) + fewest_advances(j, slots),
        )
        yield from map(A, range(start, start + j))
        yield from revolve(start + j, end, slots - 1)
        yield from revolve(start, start + j, slots)
    else:
        yield from (F(start), B(start))


@dataclass(frozen=True)
class Revolve(Recompute):
    slots: int | None = None  # None: as many as the budget has room for, beside one record

    name = "revolve"

    def needs_budget(self):
        return self.slots is None

    def order(self, chain, budget_bytes=None):
        record = max(map(chain.record, range(chain.layers)))
        slots = (
            self.slots
            if self.slots is not None
            else (budget_bytes - record) // max(1, *chain.states)
        )
        refuse(
            (
                slots < 1,
                "Revolve needs a slot for the chain's input beside the largest record: give it at"
                f" least one slot, or a budget of {record + max(chain.states):,} bytes.",
            )
        )
        return revolve(0, chain.layers, min(slots, chain.layers))
