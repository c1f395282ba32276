"""w <- w - rate m / (sqrt(v) + eps), by the mean m of gradients and v of squares. It keeps both.

Source: Kingma and Ba 2015, Adam (arXiv:1412.6980), algorithm 1."""

from ..optimizer import Optimizer


class Adam(Optimizer):
    name = "adam"

    @staticmethod
    def make(weights, rate):
        import torch

        return torch.optim.Adam(weights, rate)
