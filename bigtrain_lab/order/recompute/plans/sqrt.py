"""Square root: segments of about sqrt(n) layers, so that the kept inputs and one segment's records
are about equally many.

    k kept inputs + n/k records    is least at k = sqrt(n):   2 sqrt(n) for one more forward

Best among plans that run each layer at most twice, for equal layers whose record weighs what a
state does; where a record weighs more, more and shorter segments are better, and a plan that runs
layers more often needs less memory still. Source: Chen et al. 2016 (arXiv:1604.06174), section 4.
"""

from math import isqrt

from ..plan import Recompute
from .every_k import by_segments


class SquareRoot(Recompute):
    name = "sqrt"

    def order(self, chain, budget_bytes=None):
        n = chain.layers
        segments = isqrt(n - 1) + 1
        return by_segments([n * i // segments for i in range(segments)], n)
