"""Two models as chains of layers for recompute plans: a GPT, whose blocks are alike, and an MLP, no two layers of which are.

    GPT    ids -> embedding -> block x L -> head and loss
    MLP    x_0 -> tanh(W x) x (L-1) -> W x and loss            widths in a round of SHAPE times the width

A layer here is a function of the state before it, as techniques/checkpoint runs it; the last one ends in the loss, a single
number. The accounts say what the layers weigh from shapes alone: bytes to the byte, flops of the products, moved bytes by the
rules of `movements`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from bigtrain_lab.recompute import Chain

from .account import boundary_bytes, matmul_flops, matmuls, movements, saved_bytes
from .blocks import Linear, cross_entropy
from .config import GPTConfig
from .dropout import Dropout, Noise
from .gpt import GPT
from .seed import normal

SHAPE = (1, 4, 0.5, 2, 1, 0.25, 3, 1.5)
SQUARE = ("attention.probabilities", "attention.dropped_probabilities", "attention.dropout_probabilities.keep")
AGAIN = ("attention.scale", "attention.causal values", "attention.causal", "attention.softmax", "attention.dropout_probabilities values",
         "attention.dropout_probabilities keep")


def chain_of(model: nn.Module, noise: Noise, targets, inside: Callable | None = None) -> list[Callable]:
    """Either model as a chain of layers that ends in the loss. `inside`: what to make of each block, such as checkpoint's `selective`."""
    return mlp_layers(model, noise, targets) if isinstance(model, UnevenMLP) else gpt_layers(model, noise, targets, inside)


class Work(NamedTuple):
    """What a layer's pass costs: flops of its products, and bytes that its other operators move."""

    flops: int
    moved_bytes: int


# -- a GPT ------------------------------------------------------------------------------------------------------


def gpt_layers(model: GPT, noise: Noise, targets_BS, inside: Callable | None = None) -> list[Callable]:
    """The model's pieces as a chain."""
    embedding, *blocks, head = model.layers.values()
    chosen = [partial(inside(block) if inside else block, noise=noise) for block in blocks]
    return [partial(embedding, noise=noise), *chosen, lambda x_BSD: cross_entropy(head(x_BSD), targets_BS)]


def gpt_weights(config: GPTConfig, rows: int, inside: bool = False) -> tuple[Chain, list[Work], list[Work]]:
    """(Chain, work of each forward, of each backward). The ids count as nothing: they are the caller's. `inside`: attention's
    square is not kept, and its backward makes it again."""
    layers, hidden = range(config.pieces), boundary_bytes(config, rows)
    saved = [sum(row.bytes for row in saved_bytes(config, i, i + 1, rows) if not (inside and row.name.endswith(SQUARE))) for i in layers]
    forwards, backwards = [], []
    for i in layers:
        flops, moves = matmul_flops(config, i, i + 1, rows), movements(config, i, i + 1, rows)
        again = [row for row in moves if inside and row.name.endswith(AGAIN)]
        scores = sum(m.flops for m in matmuls(config, i, i + 1, rows) if inside and m.name.endswith("scores"))
        forwards.append(Work(flops[0], sum(row.bytes * row.forward for row in moves)))
        backwards.append(Work(flops[1] + scores, sum(row.bytes * row.backward for row in moves) + sum(row.bytes * row.forward for row in again)))
    chain = Chain.of([0, *[hidden] * (config.layers + 1), config.dtype.itemsize], saved)
    return chain, forwards, backwards


# -- an MLP of unequal layers -----------------------------------------------------------------------------------


class UnevenMLP(nn.Module):
    """x <- dropout(tanh(W_i x)), the last without either; W_i ~ N(0, 1/inputs) from (seed, name)."""

    def __init__(self, layers: int, width: int, dropout: float = 0.0, seed: int = 0, dtype=torch.float32):
        super().__init__()
        sizes = uneven_widths(layers, width)
        self.layers = nn.ModuleList(Linear(a, b, bias=False, dtype=dtype) for a, b in zip(sizes, sizes[1:]))
        self.dropouts = nn.ModuleList(Dropout(dropout, f"layers.{i}.dropout") for i in range(layers - 1))
        with torch.no_grad():
            for name, weight in self.named_parameters():
                weight.copy_(normal(weight, seed, name) / math.sqrt(weight.shape[1]))


def uneven_widths(layers: int, width: int) -> list[int]:
    """Widths of x_0 .. x_n; the last is the output's, one `width` again."""
    return [*(max(1, int(width * SHAPE[i % len(SHAPE)])) for i in range(layers)), width]


def mlp_layers(model: UnevenMLP, noise: Noise, targets) -> list[Callable]:
    """The model's layers as a chain."""
    *inner, last = model.layers
    return [*(partial(one_layer, layer, dropout, noise) for layer, dropout in zip(inner, model.dropouts)),
            lambda x: F.mse_loss(last(x), targets)]


def one_layer(layer: nn.Module, dropout: Dropout, noise: Noise, x):
    return dropout(layer(x).tanh(), noise)


def mlp_weights(layers: int, width: int, rows: int, dropout: float, item: int) -> tuple[Chain, list[Work], list[Work]]:
    """As `gpt_weights`. A layer saves its input for the product and tanh's output, which is the next state where nothing is dropped;
    the loss saves its difference's two sides."""
    sizes = uneven_widths(layers, width)
    values = [rows * size for size in sizes]
    saved = [count * (item + 1) if dropout else 0 for count in values[1:-1]] + [values[-1] * item]
    flops = [2 * rows * a * b for a, b in zip(sizes, sizes[1:])]
    moved = [count * (2 * item + (6 * item + 2 if dropout else 0)) for count in values[1:]]
    states = [0, *(count * item for count in values[1:])]  # the last: the loss keeps the storage of all its squares
    chain = Chain.of(states, saved, saves_output=[not dropout] * (layers - 1) + [False])
    return chain, [Work(f, m) for f, m in zip(flops, moved)], [Work(2 * f, 2 * m) for f, m in zip(flops, moved)]
