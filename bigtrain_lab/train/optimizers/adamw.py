"""Adam's step, and w <- w - rate 0.01 w beside it: the decay is not divided by sqrt(v).

Source: Loshchilov and Hutter 2019, Decoupled weight decay (arXiv:1711.05101), algorithm 2."""

from ..optimizer import Optimizer


class AdamW(Optimizer):
    name = "adamw"

    @staticmethod
    def make(weights, rate):
        import torch

        return torch.optim.AdamW(weights, rate)
