"""Recursive halving: keep the state in the middle, run the upper half backward by the same rule,
then the lower half.

    states kept   at most 1 + log2(n)
    advances      T(n) = n/2 + 2 T(n/2) = n/2 log2(n)      for n a power of 2

    n = 4    0A 1A 2A 3F 3B   2F 2B   0A 1F 1B   0F 0B

Each halving costs half a sweep and one state. For 64 layers 192 advances with 6 inputs kept, and
one record at a time. Source: Griewank 1992, Optimization Methods and Software 1(1); Chen et al.
2016 (arXiv:1604.06174), section 4.
"""

from ..plan import A, B, F, Recompute


def halved(start: int, end: int):
    """The layers start .. end-1, run backward from the state before them."""
    if end - start == 1:
        yield from (F(start), B(start))
        return
    middle = (start + end) // 2
    yield from map(A, range(start, middle))
    yield from halved(middle, end)
    yield from halved(start, middle)


class Halving(Recompute):
    name = "halving"

    def order(self, chain, budget_bytes=None):
        return halved(0, chain.layers)
