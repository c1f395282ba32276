"""w <- w - rate g. It keeps nothing."""

import torch

from ..optimizer import Optimizer


class SGD(Optimizer):
    name = "sgd"

    @staticmethod
    def make(weights, rate):
        return torch.optim.SGD(weights, rate)
