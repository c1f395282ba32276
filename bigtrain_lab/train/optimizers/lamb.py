"""Adam's step, as long as a share of the layer's own weights: techniques/lamb.py."""

from ...techniques import lamb
from ..optimizer import Optimizer


class LAMB(Optimizer):
    name = "lamb"

    @staticmethod
    def make(weights, rate):
        return lamb.LAMB(weights, rate)
