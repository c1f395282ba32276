"""Keep none: only the chain's input is kept, and each backward begins again from there.

    0A 1A ... (n-2)A (n-1)F (n-1)B   0A ... (n-3)A (n-2)F (n-2)B   ...        advances (n-1) + (n-2)
                                                                              + ... + 1 = n(n-1)/2

The least memory there is: the input and one record. For 64 layers 2,016 advances.
"""

from ..plan import Recompute, each_anew


class KeepNone(Recompute):
    name = "keep-none"

    def order(self, chain, budget_bytes=None):
        return each_anew(0, chain.layers)
