from math import pi, sin


def answer(tau, curvature):
    return 2 * sin(pi / (2 * (2 * tau + 1))) / curvature
