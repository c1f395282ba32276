"""The smallest model that a pipeline can cut: square matrices with tanh between, none after the
last.

    x <- tanh(W_i x),  i = 0 .. layers-2;   y = W x;   W_i ~ N(0, 1/width) from (seed, name)

No bias: a stage of one 16 x 16 layer is 256 numbers, small enough to watch every weight version.
"""

import torch
from torch import nn

from bigtrain_lab.core import refuse

from .blocks import Linear
from .config import format_of, require_counts, require_slice
from .dropout import Noise
from .seed import fill


class MLPStage(nn.Module):
    """Layers first .. last-1 of the whole. Parameter names are those of the whole:
    `layers.3.weight`."""

    def __init__(
        self, layers: int, width: int, first: int, last: int, seed: int = 0, dtype=torch.float32
    ):
        super().__init__()
        require_slice(first, last, layers)
        require_counts(width=width)
        format_of(dtype)
        self.first, self.last, self.final = first, last, layers - 1
        self.layers = nn.ModuleDict(
            {str(i): Linear(width, width, bias=False, dtype=dtype) for i in range(first, last)}
        )
        fill(self, seed)

    def forward(self, x, noise: Noise | None = None):
        for i, layer in zip(range(self.first, self.last), self.layers.values()):
            x = layer(x) if i == self.final else layer(x).tanh()
        return x


def layered_mlp(
    layers: int, width: int, stages: int = 1, seed: int = 0, dtype=torch.float32
) -> list[MLPStage]:
    """The whole cut into equal stages, left-over layers with the earlier ones. One stage is the
    whole."""
    require_counts(layers=layers, stages=stages)
    refuse(
        (
            stages > layers,
            f"{stages} stages need at least {stages} layers; the MLP has {layers}: "
            f"take {layers} stages or {stages} layers.",
        )
    )
    each, over = divmod(layers, stages)
    ends = [each * stage + min(stage, over) for stage in range(stages + 1)]
    return [
        MLPStage(layers, width, first, last, seed, dtype) for first, last in zip(ends, ends[1:])
    ]
