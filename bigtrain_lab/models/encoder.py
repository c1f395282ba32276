"""A BERT-style encoder that tells how two marked names of a sentence are related.

    x = token + position;   x = block(x), every word sees every word;   logits = W [norm(x at [E1]);
                                                                        norm(x at [E2])] + b

The pair is read from the states at its two start markers, the best of the six ways of Baldini
Soares et al. 2019 (arXiv:1906.03158, section 3.3, "entity start"). Beside Devlin et al. 2018
(arXiv:1810.04805) the blocks are those of models/blocks.py, so the norms come before attention and
MLP and not after, and there are no segment embeddings. 12 L D^2 + 13 L D + (V + S + 2) D + (2 D +
1) C weights.

Shapes: B batch, S sequence, D width, C classes.
"""

import torch
from torch import nn

from .blocks import Block, Embedding, Linear, block_slices, cross_entropy
from .config import EncoderConfig
from .dropout import Noise
from .gpt import initialise


class RelationHead(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        self.relation = Linear(2 * config.width, config.classes, dtype=config.torch_dtype)

    def forward(self, x_BSD, marks_B2):
        rows_B1 = torch.arange(len(marks_B2), device=marks_B2.device).unsqueeze(-1)
        at_marks_B2D = x_BSD[
            rows_B1, marks_B2
        ]  # indexing saves its indices for the backward; gather would save x_BSD
        return self.relation(self.norm(at_marks_B2D).flatten(1))


class Encoder(nn.Module):
    """Pieces "0" (embedding), "1" .. "L" (blocks) and "L+1" (head), named as a GPT's:
    `layers.1.attention.qkv.weight`."""

    def __init__(self, config: EncoderConfig, seed: int = 0):
        super().__init__()
        self.config = config
        *numbers, head = range(config.pieces)
        self.layers = nn.ModuleDict(
            {
                str(i): kind(config, f"layers.{i}")
                for i, kind in zip(numbers, [Embedding, *[Block] * config.layers])
            }
        )
        self.layers[str(head)] = RelationHead(config)
        initialise(self, config.layers, seed)

    def forward(self, ids_BS, keep_BS, marks_B2, noise: Noise | None = None) -> torch.Tensor:
        """Logits (B, C). ids and marks int64; `keep_BS` is True where a word is and False on
        padding. Marks are places in the sentence, [E1] first."""
        embedding, *blocks, head = self.layers.values()
        x_BSD = embedding(ids_BS, noise)
        for block in blocks:
            x_BSD = block(x_BSD, noise, keep_BS)
        return head(x_BSD, marks_B2)


def encoder_slices(config: EncoderConfig) -> dict[str, str]:
    """How techniques/sliced_model.py cuts an encoder. Its head, which reads two tokens, stays
    whole."""
    return {"layers.0.token": "vocabulary", **block_slices(config)}


class_loss = cross_entropy  # of logits (B, C): the mean over the batch
