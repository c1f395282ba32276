"""The largest rate at which descent by gradients of `tau` updates ago still converges.

    w(t+1) = w(t) - eta curvature w(t - tau)
    stable below 2 sin(pi / (2 (2 tau + 1))) / curvature

The truths are the formula, the roots of z^(tau+1) = z^tau - eta curvature, whose largest lies on
the unit circle there, and the recurrence itself, run long. An answer may be off by 2%.
Source: Levin and May 1976, A note on difference-delay equations (Theoretical Population Biology 9).
"""

NAME, NEAR = "largest-stable-rate", 0.02


def scenes(draw):
    steep, flat = draw.uniform(3, 9), draw.uniform(0.02, 0.2)
    longer = draw.randint(4, 6)
    yield from (
        (f"tau = {tau}, curvature {curvature:.4g}", {"tau": tau, "curvature": curvature})
        for tau, curvature in (
            *((tau, 1) for tau in range(4)),
            (0, steep),
            (0, flat),
            (1, flat / 1e9),
            (2, steep),
            (3, flat),
            (longer, 1),
            (longer, steep),
            (12, 1),
            (draw.randint(7, 11), 1e6 * steep),
        )
    )


def shown(inputs: dict, rate: float) -> float:
    return rate
