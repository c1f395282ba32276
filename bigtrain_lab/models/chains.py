"""Two models as chains of layers for recompute plans: a GPT, whose blocks are alike, and an MLP, no
two layers of which are.

    GPT    ids -> embedding -> block x L -> head and loss
    MLP    x_0 -> tanh(W x) x (L-1) -> W x and loss            widths in a round of SHAPE times the
                                                               width

A layer here is a function of the state before it, as techniques/checkpoint runs it; the last one
ends in the loss, a single number. What the layers weigh and cost is found by a dry run of each kind
of layer.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bigtrain_lab.order.recompute.plan import Chain
from bigtrain_lab.order.schedule import Action
from bigtrain_lab.techniques.checkpoint import weigh
from bigtrain_lab.train.account import Work
from bigtrain_lab.train.dry_run import dry_run

from .blocks import Linear, cross_entropy
from .chain_weights import uneven_widths
from .dropout import Dropout, Noise
from .gpt import GPT
from .seed import fill


def chain_of(
    model: nn.Module, noise: Noise, targets, inside: Callable | None = None
) -> list[Callable]:
    """Either model as a chain of layers that ends in the loss. `inside`: what to make of each
    block, such as checkpoint's `selective`."""
    return (
        mlp_layers(model, noise, targets)
        if isinstance(model, UnevenMLP)
        else gpt_layers(model, noise, targets, inside)
    )


def loss_of(model: nn.Module, x, noise: Noise, targets) -> Tensor:
    """The whole chain, run plainly."""
    for layer in chain_of(model, noise, targets):
        x = layer(x)
    return x


# -- a GPT -----------------------------------------------------------------------------------------


class ChainGPT(GPT):
    """A GPT whose forward goes on to the loss."""

    forward = loss_of


def gpt_layers(
    model: GPT, noise: Noise, targets_BS, inside: Callable | None = None
) -> list[Callable]:
    """The model's pieces as a chain."""
    embedding, *blocks, head = model.layers.values()
    chosen = [partial(inside(block) if inside else block, noise=noise) for block in blocks]
    return [
        partial(embedding, noise=noise),
        *chosen,
        lambda x_BSD: cross_entropy(head(x_BSD), targets_BS),
    ]


def weights_of(
    layers_of: Callable, x: Tensor, targets: Tensor | None = None
) -> tuple[Chain, tuple[Work, ...], tuple[Work, ...]]:
    """What the layers weigh that are made for a noise, when x and the targets, which are the
    caller's, are not counted; and what each pass costs."""
    targets = x if targets is None else targets

    def program(rank):
        with rank.aside():
            found.append(weigh(layers_of(Noise(0, 0, 0)), x))
        states, layers = [x], layers_of(Noise(0, 0, 0))
        for at, layer in enumerate(layers):
            begin = states[-1].detach().requires_grad_(at > 0)
            with rank.span(Action("F", at, 0)):
                y = layer(begin)
            dy = torch.ones_like(y)
            with rank.span(Action("B", at, 0)):
                y.backward(dy)
            states.append(y)

    found: list[Chain] = []
    dry, chain = dry_run(program), found[0]
    chain = chain._replace(
        states=(0, *chain.states[1:]),
        saved=(*chain.saved[:-1], chain.saved[-1] - targets.nbytes),
        forwards=(1,) * chain.layers,
        backwards=(2,) * chain.layers,
    )
    return chain, *(
        tuple(dry.actions[str(Action(kind, at, 0))].work for at in range(chain.layers))
        for kind in "FB"
    )


# -- an MLP of unequal layers ----------------------------------------------------------------------


class UnevenMLP(nn.Module):
    """x <- dropout(tanh(W_i x)), the last without either, then the loss; W_i ~ N(0, 1/inputs) from
    (seed, name)."""

    forward = loss_of

    def __init__(
        self, layers: int, width: int, dropout: float = 0.0, seed: int = 0, dtype=torch.float32
    ):
        super().__init__()
        sizes = uneven_widths(layers, width)
        self.layers = nn.ModuleList(
            Linear(a, b, bias=False, dtype=dtype) for a, b in zip(sizes, sizes[1:])
        )
        self.dropouts = nn.ModuleList(
            Dropout(dropout, f"layers.{i}.dropout") for i in range(layers - 1)
        )
        fill(self, seed)


def mlp_layers(model: UnevenMLP, noise: Noise, targets) -> list[Callable]:
    """The model's layers as a chain."""
    *inner, last = model.layers
    return [
        *(
            lambda x, layer=layer, dropout=dropout: dropout(layer(x).tanh(), noise)
            for layer, dropout in zip(inner, model.dropouts)
        ),
        lambda x: F.mse_loss(last(x), targets),
    ]
