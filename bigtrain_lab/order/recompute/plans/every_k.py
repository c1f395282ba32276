"""Every k-th: the input of every k-th layer is kept; each segment of k layers is recorded again as
a whole, the last one first.

    k = 2, n = 6     0A 1A 2A 3A 4F 5F 5B 4B   2F 3F 3B 2B   0F 1F 1B 0B
    advances         n - k where k divides n

Every layer but those of the last segment runs twice. Peak: the kept inputs and one segment's
records. Source: Chen et al. 2016 (arXiv:1604.06174), section 4.
"""

from dataclasses import dataclass

from ....core import refuse
from ..plan import A, B, F, Recompute


def by_segments(starts, layers: int):
    """The order that keeps the inputs of the segments which begin at these layers, 0 the first of
    them."""
    ends = [*starts[1:], layers]
    yield from map(A, range(starts[-1]))
    for start, end in zip(reversed(starts), reversed(ends)):
        yield from (*map(F, range(start, end)), *map(B, reversed(range(start, end))))


@dataclass(frozen=True)
class EveryK(Recompute):
    k: int = 4

    name = "every-k"

    def __post_init__(self):
        refuse(
            (
                not isinstance(self.k, int) or self.k < 1,
                f"k is {self.k!r}: keep the input of every k-th layer, with k a whole number of at"
                " least 1.",
            )
        )

    def order(self, chain, budget_bytes=None):
        return by_segments(range(0, chain.layers, self.k), chain.layers)
