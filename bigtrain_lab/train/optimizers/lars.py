"""Momentum's step, as long as a share of the layer's own weights: techniques/lars.py."""

from ..optimizer import Optimizer


class LARS(Optimizer):
    name = "lars"

    @staticmethod
    def make(weights, rate):
        from ...techniques import lars

        return lars.LARS(weights, rate)
