"""v <- 0.9 v + g, w <- w - rate v. It keeps v.

Source: Sutskever et al. 2013, On the importance of initialization and momentum, section 2."""

from ..optimizer import Optimizer


class Momentum(Optimizer):
    name = "momentum"

    @staticmethod
    def make(weights, rate):
        import torch

        return torch.optim.SGD(weights, rate, momentum=0.9)
