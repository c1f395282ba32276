import numpy as np


def answer(tau, curvature):
    def radius(r):
        polynomial = [1.0, -1.0] + [0.0] * (tau - 1) + [r] if tau else [1.0, r - 1.0]
        return max(abs(np.roots(polynomial)))

    low, high = 0.0, 3.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if radius(middle) < 1 else (low, middle)
    return np.float64(high) / curvature
