"""Keep all: plain training. Each layer is recorded as the forward passes, nothing runs twice, and
all records are alive at the turn.

0F 1F ... (n-1)F   (n-1)B ... 1B 0B            advances 0,   peak: the sum of all records
"""

from ..plan import B, F, Recompute


class KeepAll(Recompute):
    name = "keep-all"

    def order(self, chain, budget_bytes=None):
        layers = range(chain.layers)
        return [*map(F, layers), *map(B, reversed(layers))]
