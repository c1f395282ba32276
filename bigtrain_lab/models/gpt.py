"""A byte-level GPT that can be built whole or one stage at a time, with the same numbers either
way.

    GPT = Embedding, Block x layers, Head;   GPTStage(first, last) = its slice, under the whole
                                             model's names

The whole has 12 L D^2 + 13 L D + (2 V + S + 2) D weights (V once if tied). Each initial value comes
from a generator seeded by (seed, name): N(0, 0.02), the two projections that write into the
residual stream N(0, 0.02 / sqrt(2 L)), biases 0, norms 1. So a stage holds, bit for bit, what the
whole model holds there. Cut into stages, a tied model has two copies of its table, which
`tied_weights` names for the pipeline to add their gradients up. Radford et al. 2019 (GPT-2),
section 2.3.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn

from .blocks import Block, Embedding, Head, block_slices
from .config import GPTConfig, require_slice
from .dropout import Noise
from .seed import normal


class GPTStage(nn.Module):
    """Pieces first .. last-1 of the model. Parameter names are those of the whole:
    `layers.3.attention.qkv.weight`."""

    def __init__(self, config: GPTConfig, first: int, last: int, seed: int = 0):
        super().__init__()
        require_slice(first, last, config.pieces)
        self.config, self.first, self.last = config, first, last
        kinds = [Embedding, *[Block] * config.layers, Head]
        self.layers = nn.ModuleDict(
            {str(i): kinds[i](config, f"layers.{i}") for i in range(first, last)}
        )
        if config.tied and (first, last) == (0, config.pieces):
            self.layers[str(last - 1)].logits.weight = self.layers["0"].token.weight
        initialise(self, config.layers, seed, config.tied)

    def forward(self, x, noise: Noise | None = None):
        """x: token ids (B, S) where the stage has the embedding, else hidden (B, S, D).
        Returns logits (B, S, V) where it has the head, else hidden (B, S, D)."""
        for layer in self.chained_layers:
            x = layer(x, noise)
        return x

    @property
    def chained_layers(self) -> Iterable[nn.Module]:
        """What a recompute plan may run one by one: techniques/checkpoint."""
        return self.layers.values()

    @property
    def elsewhere(self) -> list[str]:
        """Paths of the pieces that other stages have."""
        return [f"layers.{i}" for i in range(self.config.pieces) if not self.first <= i < self.last]


class GPT(GPTStage):
    """The whole model: the one stage that has everything."""

    def __init__(self, config: GPTConfig, seed: int = 0):
        super().__init__(config, 0, config.pieces, seed)


def gpt_slices(config: GPTConfig) -> dict[str, str]:
    """How techniques/sliced_model.py cuts a GPT, or its stages: each block's two pairs of matrices,
    both tables."""
    return {
        "layers.0.token": "vocabulary",
        "layers.0.position": "sequence",
        **block_slices(config),
        f"layers.{config.pieces - 1}.logits": "vocabulary",
    }


@torch.no_grad()
def initialise(module: nn.Module, layers: int, seed: int, tied: bool = False):
    """Fill every parameter from (seed, its name). Drawn in float64 and rounded: all dtypes start
    from one model. A tied output's copy has the embedding's values."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            return
        if parameter.dim() == 1:
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            continue
        writes_residual = name.endswith((".out.weight", "mlp.down.weight"))
        std = 0.02 / math.sqrt(2 * layers) if writes_residual else 0.02
        drawn = "layers.0.token.weight" if tied and name.endswith("logits.weight") else name
        parameter.copy_(normal(parameter, seed, drawn).mul_(std))
