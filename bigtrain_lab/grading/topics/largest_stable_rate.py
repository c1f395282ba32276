"""The largest rate at which descent by gradients of `tau` updates ago still converges.

    w(t+1) = w(t) - eta curvature w(t - tau)
    stable below 2 sin(pi / (2 (2 tau + 1))) / curvature

The truths are the formula, the roots of z^(tau+1) = z^tau - eta curvature, whose largest lies on
the unit circle there, and the recurrence itself, run long. An answer may be off by 2%.
Source: Levin and May 1976, A note on difference-delay equations (Theoretical Population Biology 9).
"""

import math
from numbers import Real

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

NEAR = 0.02
RIGHT = """
def settles(rate, tau, curvature):
    steps = 200 * (tau + 1) ** 2
    w = [1.0] * (tau + 1)
    for t in range(tau, tau + steps):
        w.append(w[t] - rate * curvature * w[t - tau])
        if abs(w[-1]) > 1e9:
            return False
    quarter = steps // 4
    late, before = max(map(abs, w[-quarter:])), max(map(abs, w[-2 * quarter:-quarter]))
    return late < before or late == 0

def answer(tau, curvature):
    low, high = 0.0, 4 / curvature
    while high - low > 0.003 * high:
        middle = (low + high) / 2
        if settles(middle, tau, curvature):
            low = middle
        else:
            high = middle
    return low
"""
FORMULA = """
from math import pi, sin

def answer(tau, curvature):
    return 2 * sin(pi / (2 * (2 * tau + 1))) / curvature
"""
ROOTS = """
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
"""
COMPANION = """
import torch

def answer(tau, curvature):
    rates = torch.linspace(0, 2.5, 2001, dtype=torch.float64)[1:]
    step = torch.diag(torch.ones(tau, dtype=torch.float64), -1).repeat(len(rates), 1, 1)
    step[:, 0, 0] += 1
    step[:, 0, -1] -= rates
    stable = torch.linalg.eigvals(step).abs().amax(1) < 1
    return rates[stable].max() / curvature
"""
CIRCLE = """
import cmath
import math

def answer(tau, curvature):
    '''Where z = exp(i phi) makes z^tau (1 - z) real: the first such phi above 0.'''
    imaginary = lambda phi: (cmath.exp(1j * phi * tau) * (1 - cmath.exp(1j * phi))).imag
    low, high = 1e-9, 1e-9
    while high < math.pi and imaginary(high) < 0:
        low, high = high, high + 1e-2 / (tau + 1)
    low, high = (low, high) if high < math.pi else (math.pi, math.pi)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if imaginary(middle) < 0 else (low, middle)
    return abs(1 - cmath.exp(1j * high)) / curvature
"""
SEARCH, BRACKET = "while high - low > 0.003 * high:", "4 / curvature"
LONG, AHEAD = "200 * (tau + 1) ** 2", "w = [1.0] * (tau + 1)"
SHRINKS = "late < before or late == 0"
HEAD = "from math import *\n\ndef answer(tau, curvature):\n    return "
LATE = "A rate that diverges slowly counts as stable: run longer, or ask whether the swings shrink."


def but(*changes: str) -> str:
    """The answer by trial with old, new, old, new, ... replaced."""
    text = RIGHT
    for old, new in zip(changes[::2], changes[1::2]):
        assert old in text, old
        text = text.replace(old, new)
    return text


class LargestStableRate(Topic):
    name = "largest-stable-rate"
    hints = (
        "Run w <- w - eta curvature w(t - tau) with two rates: how do you see that one diverges?",
        "A stable run's swings shrink. Compare the largest |w| late in a long run with that "
        "of the stretch before it; halve an interval of rates.",
        "Or put w(t) = z^t: which equation must z meet? The largest stable rate has its "
        "largest |z| equal to 1, so search on the roots, or solve z = exp(i phi).",
    )
    right = {
        "the formula": FORMULA,
        "by trial": RIGHT,
        "roots": ROOTS,
        "a companion matrix": COMPANION,
        "on the unit circle": CIRCLE,
        "a cosine": HEAD + "2 * cos(pi * tau / (2 * tau + 1)) / curvature",
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "ignores_delay",
                "The delay does nothing in yours: the gradient is that of tau updates ago.",
                HEAD + "2 / curvature",
            ),
            (
                "forgets_curvature",
                "The curvature does nothing in yours: a steeper bowl needs a smaller rate.",
                HEAD + "2 * sin(pi / (2 * (2 * tau + 1)))",
            ),
            (
                "times_curvature",
                "A steeper bowl gets a larger rate in yours: divide by the curvature.",
                HEAD + "2 * sin(pi / (2 * (2 * tau + 1))) * curvature",
            ),
            (
                "root_of_curvature",
                "You divide by the curvature's root, as an oscillator would: divide by all of it.",
                HEAD + "2 * sin(pi / (2 * (2 * tau + 1))) / sqrt(curvature)",
            ),
            (
                "over_one_plus_tau",
                "2 / (1 + tau) is right for tau 0 and 1 only: try 2 and more.",
                HEAD + "2 / (1 + tau) / curvature",
            ),
            (
                "over_tau",
                "2 / tau is too large at tau = 1, where one old gradient matters: run it and look.",
                HEAD + "2 / max(1, tau) / curvature",
            ),
            (
                "over_two_tau_plus_one",
                "2 / (2 tau + 1) is too careful: larger rates still converge at tau = 1.",
                HEAD + "2 / (2 * tau + 1) / curvature",
            ),
            (
                "halves_each",
                "Each step of delay halves the rate in yours: from tau = 2 on it costs less.",
                HEAD + "2 * 0.5**tau / curvature",
            ),
            (
                "one_more_step",
                "Your delay is one update too long: at tau = 0 the gradient is that of now.",
                HEAD + "2 * sin(pi / (2 * (2 * tau + 3))) / curvature",
            ),
            (
                "one_step_less",
                "Your delay is one update too short: at tau = 1 the gradient is one update old.",
                HEAD + "2 * sin(pi / (2 * (2 * max(tau - 1, 0) + 1))) / curvature",
            ),
            (
                "small_angle",
                "An angle stands for its sine, nearly right for long delays only: take the sine.",
                HEAD + "pi / (2 * tau + 1) / curvature",
            ),
            (
                "continuous",
                "Your time is continuous, without steps: an update is a whole step.",
                HEAD + "min(2, pi / (2 * tau) if tau else 2) / curvature",
            ),
            (
                "half_the_angle",
                "Your root meets the circle at half the angle: put it into the equation.",
                HEAD + "2 * sin(pi / (4 * (2 * tau + 1))) / curvature",
            ),
            (
                "one_sine",
                "A rate of half the right size, at which all still shrinks: try larger ones.",
                HEAD + "sin(pi / (2 * (2 * tau + 1))) / curvature",
            ),
            (
                "degrees",
                "Your sine takes degrees for radians: pi is half a turn.",
                HEAD + "2 * sin(180 / (2 * (2 * tau + 1))) / curvature",
            ),
            (
                "no_overshoot",
                "That is the largest rate without a swing: a stable run may swing while "
                "it shrinks.",
                HEAD + "(tau / (tau + 1)) ** tau / (tau + 1) / curvature",
            ),
            (
                "starts_at_rest",
                "Your run starts at 0 and stays there at any rate: start elsewhere.",
                but(AHEAD, AHEAD.replace("1.0", "0.0"), SHRINKS, "late <= before"),
            ),
            (
                "reads_after",
                "Your gradient is one update too old: count from the weights that it changes.",
                but(
                    AHEAD,
                    "w = [1.0] * (tau + 2)",
                    "w[t - tau]",
                    "w[t - tau - 1]",
                    "w[t] -",
                    "w[-1] -",
                ),
            ),
            ("judges_too_early", LATE, but(SHRINKS, "abs(w[-1]) < 1e9", LONG, "40")),
            (
                "finite",
                LATE,
                but(SHRINKS, "abs(w[-1]) < float('inf')", "1e9", "1e300", LONG, "1000"),
            ),
            (
                "never_above_start",
                "A run that first swings beyond its start may converge: judge late steps.",
                but(SHRINKS, "max(map(abs, w)) <= 1"),
            ),
            (
                "one_step",
                "You compare two neighbouring steps, and a swing passes 0: compare longer "
                "stretches.",
                but(SHRINKS, "abs(w[-1]) < abs(w[-2])"),
            ),
            (
                "at_rest",
                "A run that has reached 0 counts as unstable: it has converged.",
                but(SHRINKS, "late < before"),
            ),
            (
                "arrived",
                "A slow run counts as unstable since it has not arrived yet: ask whether it "
                "shrinks.",
                but(SHRINKS, "abs(w[-1]) < 1e-6", LONG, "100 * (tau + 1)"),
            ),
            (
                "interval_ends",
                "Your search ends below the right rate: begin with a larger interval.",
                but(BRACKET, "1.5 / curvature"),
            ),
            (
                "interval_is_fixed",
                "Your interval does not follow the curvature: widen it for a flat bowl.",
                but(BRACKET, "4"),
            ),
            (
                "coarse",
                "Your search stops too early: halve until the interval is 1% of the rate.",
                but(SEARCH, "while high - low > 0.3 / curvature:"),
            ),
            (
                "real_roots",
                "You look at real roots only: those that swing are complex, and grow first.",
                ROOTS.replace(
                    "max(abs(np.roots(polynomial)))",
                    "max([abs(z) for z in np.roots(polynomial) if abs(z.imag) < 1e-9], default=0)",
                ),
            ),
            (
                "smallest_root",
                "You ask for one root inside the circle: all must be.",
                ROOTS.replace("max(abs", "min(abs"),
            ),
            (
                "wrong_power",
                "The delay is at the wrong term of your equation: the gradient is the old one.",
                ROOTS.replace(
                    "[1.0, -1.0] + [0.0] * (tau - 1) + [r] if tau",
                    "[1.0] + [0.0] * (tau - 1) + [r, -1.0] if tau",
                ),
            ),
            (
                "product",
                "Without delay you return eta times curvature, otherwise eta: always return eta.",
                FORMULA.replace(" / curvature", " / (curvature if tau else 1)"),
            ),
            ("nothing", "There is no rate: return a number.", but("return low", "return")),
        )
    }

    @staticmethod
    def probe(answer, draw):
        steep, flat = draw.uniform(3, 9), draw.uniform(0.02, 0.2)
        longer = draw.randint(4, 6)
        for tau, curvature in (
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 1),
            (0, steep),
            (0, flat),
            (1, flat),
            (2, steep),
            (3, flat),
            (longer, 1),
            (longer, steep),
            (12, 1),
            (draw.randint(7, 11), 50 * steep),
        ):
            yield Scene(
                f"tau = {tau}, curvature {curvature:.4g}",
                lambda tau=tau, curvature=curvature: rate(answer(tau, curvature)),
                NEAR,
            )


def rate(found) -> float:
    """A number as an answer may give it."""
    if hasattr(found, "item"):
        found = found.item()
    if not isinstance(found, Real) or math.isnan(found):
        raise Refused(f"Your answer returned {found!r}: return the rate, a number.")
    return float(found)
