"""Dropout zeroes each value with probability p, and draws the same zeros again wherever it is
repeated.

    y = x * keep / (1 - p),  keep ~ Bernoulli(1 - p) from a generator seeded by (seed, step, path,
                             micro-batch)

The mask depends on what is dropped, never on a generator's history: pipeline, recomputation and one
process agree bit for bit on one kind of device. Saved for the backward: `keep`, one byte a value.
Srivastava et al. 2014, section 4 (there with the factor at test time; here inverted).
"""

from typing import NamedTuple

import torch
from torch import nn

from .seed import generator


class Noise(NamedTuple):
    """Which masks a forward draws. None in its place means none at all."""

    seed: int
    step: int
    micro_batch: int


class Dropout(nn.Module):
    def __init__(self, p: float, path: str):
        """`path` names the module in the whole model, so that no two modules draw the same mask."""
        super().__init__()
        self.p, self.path = p, path

    def forward(self, x, noise: Noise | None = None):
        if noise is None or self.p == 0 or not self.training:
            return x
        draw = generator(noise.seed, noise.step, self.path, noise.micro_batch, device=x.device)
        keep = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(
            1 - self.p, generator=draw
        )
        return x * keep / (1 - self.p)

    def extra_repr(self):
        return f"p={self.p}, path={self.path!r}"
