"""w <- w - rate g. It keeps nothing."""

from ..optimizer import Optimizer


class SGD(Optimizer):
    name = "sgd"

    @staticmethod
    def make(weights, rate):
        import torch

        return torch.optim.SGD(weights, rate)
