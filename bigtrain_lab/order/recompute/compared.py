"""Recompute plans side by side: what each keeps at most, and its work beside plain training, which
keeps all.

work  (advances + forwards + backwards) / (forwards + backwards of plain training)
        1 where nothing runs twice
"""

from collections.abc import Sequence
from functools import lru_cache

from .optimum import frontier
from .plan import Chain, Op, Recompute, extra_cost, peak_bytes


def work_beside(ops: Sequence[Op], chain: Chain, plain: Chain) -> float:
    """Of a step by a plan. `plain`: the chain that keeps all; another one only where layers
    recompute inside."""
    return float(
        (extra_cost(ops, chain) + sum(chain.forwards) + sum(chain.backwards))
        / (sum(plain.forwards) + sum(plain.backwards))
    )


@lru_cache(maxsize=16)
def compared(
    plain: Chain, inside: Chain | None, k: int
) -> tuple[dict[str, tuple[int, float]], list[tuple[int, float]]]:
    """({plan: (peak bytes, work)} of those that need no budget, [(bytes, work)] of the recursion at
    each budget that makes a difference: the optimum where layers are alike; for others there may be
    a cheaper plan, which `optimum` looks for where the chain is short).

    `inside`: the chain of plans that recompute inside layers; None leaves them out. `k`: of
    every-k.
    """
    plans = {}
    for name, plan in Recompute.all().items():
        chain = inside if plan.inside else plain
        if chain and not plan().needs_budget():
            ops = (plan(k) if name == "every-k" else plan()).ops(chain)
            plans[name] = peak_bytes(ops, chain), work_beside(ops, chain, plain)
    whole = sum(plain.forwards) + sum(plain.backwards)
    return plans, [(memory, float(1 + cost / whole)) for memory, cost in frontier(plain)]
