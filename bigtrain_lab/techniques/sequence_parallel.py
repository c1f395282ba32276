"""Sequence parallelism: norms, dropout and residual, which slicing leaves whole, are cut by tokens.

    all-reduce = reduce-scatter + all-gather        so the same bytes travel, and between the two
                                                    each rank has 1/t of the tokens

    x_S/t -> norm --gather_sequence--> [ column ... row ] --scatter_sum--> dropout, + x_S/t

A norm sees one token at a time, and needs no communication. Its weights are the same on all ranks,
and each rank finds the gradient of its own tokens: `sum_duplicates` adds those up once an update.
Of the input of column-parallel matrices each rank keeps 1/t for the backward, which gathers it once
more: shared_gather.py.

Cost: an all-gather in the backward for each input of column-parallel matrices, a quarter more bytes
than tensor slicing sends; and one all-reduce of the duplicates' gradients an update.
Memory: 1/t of all that a layer saves.
Source: Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2.
"""

import torch
from torch import Tensor, nn

from ..runtime.talk.group import Group
from .guards import tensor_parallel as guard
from .prepared_model import masters_of
from .tensor_parallel import crossing, cut_of, gathered, own_part

SEQUENCE = -2  # the dimension: (..., sequence, features)


def gather_sequence(x: Tensor, group=None, name: str = "gather") -> Tensor:
    """All tokens, of which each rank has a part; the sum of the ranks' gradients is scattered."""
    return crossing(x, group, name, tokens_gathered, tokens_summed)


def scatter_sum(x: Tensor, group=None, name: str = "scatter") -> Tensor:
    """This rank's tokens of the sum of the ranks' x; the gradients of all tokens are gathered."""
    return crossing(x, group, name, tokens_summed, tokens_gathered)


def tokens_gathered(x: Tensor, group: Group, name: str) -> Tensor:
    return gathered(x, group, name, SEQUENCE)


def tokens_summed(x: Tensor, group: Group, name: str) -> Tensor:
    guard.refuse_uneven(f"{name}: the sequence", x.shape[SEQUENCE], group.size)
    return group.reduce_scatter(torch.cat(x.chunk(group.size, SEQUENCE)), name=name)


def own_tokens(group: Group, module: nn.Module, given, output: Tensor) -> Tensor:
    """A hook: of what a module makes the same on all ranks, this rank's tokens."""
    return own_part(output, group, "its tokens", SEQUENCE)


@torch.no_grad()
def sum_duplicates(module: nn.Module, group=None, name: str = "gradients of duplicates") -> None:
    """Add the gradients of the module's duplicates up over the ranks, in one all-reduce: before the
    update, and before gradients are clipped."""
    group, masters = Group.of(group), masters_of([module])
    homes = [masters.get(p, p) for p in module.parameters() if cut_of(p) is None]
    homes = [home for home in homes if home.grad is not None and home.numel()]
    if group.size == 1 or not homes:
        return
    flat = torch.cat([home.grad.reshape(-1) for home in homes])
    group.all_reduce(flat, name=name)
    for home, total in zip(homes, flat.split([home.numel() for home in homes])):
        home.grad.copy_(total.view_as(home.grad))
