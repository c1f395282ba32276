"""How large a step each update takes: a schedule is a function of the update's number, from 1 on.

    linear         rate B / B0               SGD at a batch of B that was tuned at B0
    square root    rate sqrt(B / B0)         Adam, LAMB
    warm-up        rate t / w, t <= w        before all of them: early gradients turn quickly
    Noam           f d^-1/2 min(t^-1/2, t w^-3/2)        warm-up, then 1 / sqrt(t)
    polynomial     rate (1 - t / T)^power    LARS, LAMB: their steps do not shrink by themselves

The scalings are rules of thumb, for a change of the batch. A rate changes once an update, whatever
number of micro-batches the update was made of.
Sources: at each function.
"""

from collections.abc import Callable
from math import sqrt

from ..core.later import later

with later():
    from .guards import learning_rates as guard

Schedule = Callable[[int], float]


def linear_scaling(rate: float, batch: float, base_batch: float) -> float:
    """Multiply the rate by k for a batch k times as large, SGD: one long step replaces k short ones
    along nearly the same gradient. It needs a warm-up; for ResNet-50 it held up to 8,192 images and
    not beyond. Goyal et al. 2017 (arXiv:1706.02677), section 2.1."""
    guard.refuse(rate=rate, batch=batch, base_batch=base_batch)
    return rate * batch / base_batch


def square_root_scaling(rate: float, batch: float, base_batch: float) -> float:
    """Multiply the rate by sqrt(k) for a batch k times as large, which keeps the variance that
    gradient noise gives an update. LAMB's rule (You et al. 2019, arXiv:1904.00962, section 4). For
    SGD the theory of Krizhevsky 2014 (arXiv:1404.5997), section 5, who then found the linear rule
    to do better. For Adam the rule of Malladi et al. 2022 (arXiv:2205.10287), with 1 - beta
    multiplied by k and eps divided by sqrt(k)."""
    guard.refuse(rate=rate, batch=batch, base_batch=base_batch)
    return rate * sqrt(batch / base_batch)


def constant(rate: float) -> Schedule:
    return lambda update: rate


def warm_up(rate: float, updates: int, after: Schedule | None = None) -> Schedule:
    """Raise the rate from rate / updates to `rate` at update number `updates`; then follow
    after(updates since), or keep it. Goyal et al. 2017, section 2.2."""
    guard.refuse(rate=rate, updates=updates)
    after = after or constant(rate)
    return lambda update: rate * update / updates if update <= updates else after(update - updates)


def polynomial_decay(rate: float, updates: int, power: float = 1.0, end: float = 0.0) -> Schedule:
    """Lower the rate from `rate` before the first update to `end` at number `updates`, and keep it.
    Power 1 is LAMB's for BERT (You et al. 2019, section 4.1), 2 LARS's (You et al. 2017,
    arXiv:1708.03888, section 5)."""
    guard.refuse(rate=rate, updates=updates, power=power)
    return lambda update: end + (rate - end) * max(0.0, 1 - update / updates) ** power


def noam(width: int, warm_up_updates: int, factor: float = 1.0) -> Schedule:
    """Raise the rate until update number `warm_up_updates`, then lower it. Vaswani et al. 2017
    (arXiv:1706.03762), section 5.3; the factor as in the Annotated Transformer."""
    guard.refuse(width=width, warm_up_updates=warm_up_updates, factor=factor)

    def rate(update: int) -> float:
        guard.refuse(update=update)
        return factor * width**-0.5 * min(update**-0.5, update * warm_up_updates**-1.5)

    return rate


def set_rate(optimizer, rate: float) -> None:
    """Give every parameter group the rate, times its own "rate_scale" where it has one. A rate that
    is a tensor, as under torch.compile, is filled. A number of NumPy becomes Python's, which a
    checkpoint may keep."""
    for group in optimizer.param_groups:
        scaled = float(rate * group.get("rate_scale", 1.0))
        group["lr"] = group["lr"].fill_(scaled) if hasattr(group["lr"], "fill_") else scaled
