"""Momentum's step, as long as a share of the layer's own weights: techniques/lars.py."""

from ...techniques import lars
from ..optimizer import Optimizer


class LARS(Optimizer):
    name = "lars"

    @staticmethod
    def make(weights, rate):
        return lars.LARS(weights, rate)
