"""A plain deep classifier, with batch normalisation or without anything that keeps layers in scale.

    x <- relu(norm(W_i x + b_i)),  i = 0 .. layers-1;   y = W x + b
    W_i ~ N(0, 2 / inputs), b_i = 0          from (seed, name); a norm has a bias of its own

Source of the scale: He et al. 2015 (arXiv:1502.01852), section 2.2.
"""

from collections import OrderedDict

import torch
from torch import nn

from .blocks import Linear
from .config import require_counts
from .seed import normal


class Classifier(nn.Sequential):
    """(rows, inputs) -> (rows, classes). `norm`: "none" or "batch". Weights are named
    "layers.2.linear.weight" and "head.weight"."""

    def __init__(
        self,
        inputs: int,
        width: int,
        layers: int,
        classes: int,
        norm: str = "none",
        seed: int = 0,
        dtype=torch.float32,
    ):
        require_counts(width=width, layers=layers)
        super().__init__()
        self.layers = nn.Sequential()
        for number in range(layers):
            linear = Linear(width if number else inputs, width, bias=norm == "none", dtype=dtype)
            normed = {"norm": nn.BatchNorm1d(width, dtype=dtype)} if norm == "batch" else {}
            self.layers.append(nn.Sequential(OrderedDict(linear=linear, **normed, relu=nn.ReLU())))
        self.head = Linear(width, classes, dtype=dtype)
        with torch.no_grad():
            for name, module in self.named_modules():
                if isinstance(module, Linear):
                    module.weight.copy_(
                        normal(module.weight, seed, name) * (2 / module.in_features) ** 0.5
                    )
                    if module.bias is not None:
                        module.bias.zero_()
