"""Learning rates: a schedule is a function of the update's number, from 1 on.

    linear         rate B / B0               SGD at a batch of B that was tuned at B0
    square root    rate sqrt(B / B0)         Adam, LAMB
    warm-up        rate t / w, t <= w        before any schedule: early gradients turn quickly
    Noam           f d^-1/2 min(t^-1/2, t w^-3/2)        warm-up, then 1 / sqrt(t)
    polynomial     rate (1 - t / T)^power    LARS, LAMB: their steps do not shrink by themselves

    B, B0: samples a batch     t: number of the update     w: updates of the warm-up
    T: updates in all          d: width of the model       f: a factor

The scalings are rules of thumb, for a change of the batch. A rate changes once an update, however
many micro-batches it has.
Sources: at each function.
"""

from collections.abc import Callable
from math import sqrt

from ..core.later import later

with later():
    from .guards import learning_rates as guard

Schedule = Callable[[int], float]


def linear_scaling(rate: float, batch: float, base_batch: float) -> float:
    """Multiply the rate by k for a batch k times as large, for SGD. One long step replaces k short
    ones along nearly the same gradient. It needs a warm-up. For ResNet-50 it held up to 8,192
    images and not beyond. Goyal et al. 2017 (arXiv:1706.02677), section 2.1."""
    guard.refuse(rate=rate, batch=batch, base_batch=base_batch)
    return rate * batch / base_batch


def square_root_scaling(rate: float, batch: float, base_batch: float) -> float:
    """Multiply the rate by sqrt(k) for a batch k times as large. This keeps the variance of an
    update due to gradient noise. LAMB's rule (You et al. 2019, arXiv:1904.00962, section 4). For
    SGD the theory of Krizhevsky 2014 (arXiv:1404.5997), page 5; he found the linear rule better.
    For Adam the rule of Malladi et al. 2022 (arXiv:2205.10287). They also multiply 1 - beta by k,
    and divide eps by sqrt(k)."""
    guard.refuse(rate=rate, batch=batch, base_batch=base_batch)
    return rate * sqrt(batch / base_batch)


def constant(rate: float) -> Schedule:
    return lambda update: rate


def warm_up(rate: float, updates: int, after: Schedule | None = None) -> Schedule:
    """Raise the rate from rate / updates to `rate` at update number `updates`. Then it is
    after(updates since), or constant. Goyal et al. 2017, section 2.2."""
    guard.refuse(rate=rate, updates=updates)
    after = after or constant(rate)
    return lambda update: rate * update / updates if update <= updates else after(update - updates)


def polynomial_decay(rate: float, updates: int, power: float = 1.0, end: float = 0.0) -> Schedule:
    """Lower the rate from `rate` before the first update to `end` at number `updates`, and keep it.
    Power 1 is LAMB's for BERT (You et al. 2019, section 4.1). Power 2 is LARS's (You et al. 2017,
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
    """Set the rate of every parameter group, times its own "rate_scale" if it has one. A rate that
    is a tensor, as under torch.compile, is filled. A NumPy number becomes Python's, which a
    checkpoint can contain."""
    for group in optimizer.param_groups:
        scaled = float(rate * group.get("rate_scale", 1.0))
        group["lr"] = group["lr"].fill_(scaled) if hasattr(group["lr"], "fill_") else scaled
