"""Optimal: of all plans whose peak stays within the budget, the one with the least work done twice;
layers may be unequal.

    budget    input + largest record   ->  the sum of all records
    plan      keep none                ->  keep all                    and between them every step
                                                                       that memory can buy

It keeps states and records where they are cheap to keep and dear to make. optimum.py
tells how it is found, and for which chains that is certain.
"""

from ..optimum import optimum
from ..plan import Recompute


class Optimal(Recompute):
    name = "optimal"

    def needs_budget(self):
        return True

    def order(self, chain, budget_bytes=None):
        return [op.action for op in optimum(chain, budget_bytes)]
