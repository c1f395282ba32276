"""Gradient descent on old weights: the longer the delay, the smaller the largest stable rate.

    w(t+1) = w(t) - eta lambda w(t - tau)                    on the quadratic lambda w^2 / 2
    stable  <=>  eta lambda < 2 sin(pi / (2 (2 tau + 1)))    2, 1, 0.618, 0.445 at tau 0, 1, 2, 3

Why: let r = eta lambda. w(t) = z^t solves the recurrence if z^(tau+1) = z^tau - r. Descent is
stable while each root z is inside the unit circle. As r grows, the first root on the circle is
z = exp(i phi) with phi = pi / (2 tau + 1). There r = |z - 1| = 2 sin(phi / 2).

Cost: the formula none; the search about 20 runs of 2,000 (tau + 1) steps.
Source: Levin and May 1976, A note on difference-delay equations (Theoretical Population Biology 9).
They write the condition as r < 2 cos(pi tau / (2 tau + 1)).
"""

from math import inf, pi, sin

from .guards.server_plan import refuse_delay


def largest_stable_rate(delay: int) -> float:
    """Return the eta lambda above which descent by gradients of `delay` updates ago diverges."""
    return 2 * sin(pi / (2 * (2 * delay + 1)))


def delayed_descent(rate: float, delay: int, steps: int) -> list[float]:
    """Return |w| after each step, from w = 1, until it has diverged; `rate`: eta lambda."""
    w = [1.0] * (delay + 1)
    for _ in range(steps):
        w.append(w[-1] - rate * w[-1 - delay])
        if abs(w[-1]) > 1e100:
            break
    return [abs(each) for each in w[delay + 1 :]]


def found_stable_rate(delay: int, accuracy: float = 1e-3) -> float:
    """Find the largest stable rate by bisection. A rate is stable if the last quarter of a run has
    a smaller maximum than the quarter before."""
    refuse_delay(delay, accuracy)
    low, high, steps = 0.0, 2.5, 2000 * (delay + 1)
    while high - low > accuracy * high:
        middle = (low + high) / 2
        run = delayed_descent(middle, delay, steps)
        quarter = len(run) // 4
        last = max(run[-quarter:]) if len(run) == steps else inf
        if last == 0 or last < max(run[-2 * quarter : -quarter]):
            low = middle
        else:
            high = middle
    return (low + high) / 2
