"""Adam's step, as long as a share of the layer's own weights: techniques/lamb.py."""

from ..optimizer import Optimizer


class LAMB(Optimizer):
    name = "lamb"

    @staticmethod
    def make(weights, rate):
        from ...techniques import lamb

        return lamb.LAMB(weights, rate)
