"""A model is sliced by a plan: which of its modules is cut how. The model itself is not rewritten.

    plan = {"layers.*.mlp.up": "column", "layers.*.mlp.down": "row", ...}      path or glob -> how
    model = sliced(GPT(config), plan, group)

    column         a Linear by its outputs; the input is whole, the result stays sliced. Queries,
                   keys and values of a Linear each too, if heads are counted by their width
    row            a Linear by its inputs, which come sliced; the result is whole
    heads          a Linear of D to D, or to 3 D (as many queries, keys, values side by side), by
                   heads
    kv heads       keys and values side by side, by their heads; if fewer than ranks, neighbours
                   share
    vocabulary     an embedding table by its rows; or the output Linear, whose logits stay sliced
    sequence       with sequence=True: what this module returns is cut to each rank's tokens; what a
                   table returns that is cut by vocabulary is so already
    split row      as row, of an input that is whole: each rank takes its part
    column gather  as column, and the results are gathered: these two show the wrong way round

One plan serves all stages of a pipeline: a stage's attribute `elsewhere` has the paths of the
modules that others have, and a pattern may name those. A module whose child is cut by heads says
their number by an attribute `heads`, or `kv_heads`, which becomes this rank's.

Each rank cuts its part out of the whole model's values, so t ranks begin, and go on, as one
process. A models.Dropout named `dropout_probabilities` draws another mask on each rank, for it
drops other heads. Any other draws the same on all, with sequence=True each for its own tokens: it
belongs where features are whole, not between a column and a row. Clip by `clip_grad_norm` with the
group: torch's function would clip each rank by the norm of its slices, and is refused.

Between a column and a row lie this rank's features alone. What is there must work feature by
feature, as gelu does: a softmax, a norm or a gate of halves would be another function. So the whole
model runs once on the first input, without a gradient, and its output is compared. Not compared is
a model that draws other masks on each slice, that cannot be copied, or with a forward that is a
function of its own. Weights that every rank holds whole are compared after the first two updates.

Cost: beside that of tensor_parallel.py, once, the whole weights gathered on each rank, and one
forward of them. Memory: each rank builds the whole model once.
Source: Shoeybi et al. 2019 (arXiv:1909.08053), section 3; a plan as in torch's parallelize_module.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from ..runtime.talk.group import Group
from .guards import sliced_model as guard
from .sequence_parallel import OF_TOKENS, SharedGather, own_tokens, scatter_sum, sum_duplicates
from .shards import COPIES
from .tensor_parallel import (
    ColumnParallelLinear,
    Cut,
    RowParallelLinear,
    SharedHeadsLinear,
    VocabParallelEmbedding,
    cut_of,
    cut_parameter,
    gather_slices,
    split_to_slices,
)

__all__ = ["Cut", "cut_of", "load_whole_state_dict", "sliced", "sum_duplicates", "whole_state_dict"]


def sliced(
    module: nn.Module, plan: Mapping[str, str], group=None, sequence: bool = False
) -> nn.Module:
    """Cut the submodules that the plan names, in place, and return the module; every rank calls it,
    with the same values. `sequence`: what is not cut by the plan is cut along the sequence.

    Impossible, on every rank, where the plan or the sizes do not fit, or the ranks' differ.
    """
    group = Group.of(group)
    guard.refuse_unlike(module, plan, group, sequence)
    ways = {path: way for pattern, way in plan.items() for path in guard.matching(module, pattern)}
    guard.refuse(module, plan, ways, group, sequence)
    if group.size > 1 and not any(p.is_meta for p in module.parameters()):
        guard.Whole(module, group, whole_of, sequence and not guard.begins(module, ways))
    cut: dict[Tensor, nn.Parameter] = {}  # whole -> own part: a tied one stays one
    gather = SharedGather() if sequence and group.size > 1 else None
    for path, way in ways.items():
        parent, _, name = path.rpartition(".")
        parent, whole = module.get_submodule(parent), module.get_submodule(path)
        if way == "sequence":
            if sequence:
                whole.register_forward_hook(partial(own_tokens, group))
            continue
        own = layer_of(whole, way, path, group, gather, getattr(parent, "kv_heads", 0))
        setattr(parent, name, own.train(whole.training))
        for field, each in whole.named_parameters(recurse=False):
            setattr(own, field, part_of(each, cut_of(getattr(own, field)), group, cut))
    by_heads = [(path, way) for path, way in ways.items() if way.endswith("heads")]
    for path, field in {(path.rpartition(".")[0], way.replace(" ", "_")) for path, way in by_heads}:
        attention = module.get_submodule(path)
        setattr(attention, field, max(getattr(attention, field) // group.size, 1))
    for path, dropout in module.named_modules():
        inside = path.endswith("dropout_probabilities")
        if group.size > 1 and (inside or sequence) and hasattr(dropout, "path"):
            dropout.path += f" of slice {group.rank}"
    if sequence:
        OF_TOKENS.update(dict.fromkeys(module.parameters(), True))
    if group.rank > 0:
        COPIES.update({each: True for each in module.parameters() if cut_of(each) is None})
    if group.size > 1:
        module.register_forward_pre_hook(guard.Drift(group))
    return module


def layer_of(
    whole: nn.Module, way: str, path: str, group: Group, gather: SharedGather | None, kv_heads: int
) -> nn.Module:
    """Make a sliced layer of the whole one's sizes, without values; with `gather` its input or its
    result is cut along the sequence."""
    kind = RowParallelLinear if way.endswith("row") else ColumnParallelLinear
    if way == "kv heads" and kv_heads < group.size:
        kind = partial(SharedHeadsLinear, kv_heads)
    with torch.device("meta"):
        own = (
            VocabParallelEmbedding(*whole.weight.shape, group, name=path)
            if isinstance(whole, nn.Embedding)
            else kind(
                whole.in_features, whole.out_features, group, whole.bias is not None, name=path
            )
        )
    if way.endswith("heads") and kind is ColumnParallelLinear:
        for parameter in own.parameters():
            blocks = 2 if way == "kv heads" else whole.out_features // whole.in_features
            cut_parameter(parameter, Cut(0, blocks), group)
    if gather and own.leave:
        own.leave = scatter_sum
    elif gather:
        own.product, own.share = gather.product, None
    if way == "split row":
        own.enter = split_to_slices
    elif way == "column gather":
        own.leave = gather_slices
    return own


@torch.no_grad()
def part_of(whole: nn.Parameter, cut: Cut | None, group: Group, made: dict) -> nn.Parameter:
    """Return this rank's part of a parameter; the same one for the same whole."""
    if whole not in made:
        own = (
            nn.Parameter(cut.part(whole, group.rank, group.size), whole.requires_grad)
            if cut
            else whole
        )
        made[whole] = cut_parameter(own, cut, group)
    return made[whole]


def cuts(module: nn.Module) -> dict[str, Cut]:
    """Return how each parameter is cut that is, by all of its names."""
    return {
        name: cut
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if (cut := cut_of(parameter))
    }


def whole_state_dict(module: nn.Module, group=None) -> dict[str, Tensor]:
    """Return the state of the model that was sliced, by its names and in its shapes, on every rank:
    it loads at any degree."""
    cut = cuts(module)
    return {
        name: whole_of(own, cut.get(name), group, name) for name, own in module.state_dict().items()
    }


@torch.no_grad()
def whole_of(own: Tensor, cut: Cut | None, group=None, name: str = "") -> Tensor:
    """Return what a rank's part was cut from; every rank calls it. A duplicate is whole."""
    if cut is None:
        return own
    parts = [torch.empty_like(own) for _ in range(Group.of(group).size)]
    return cut.whole(Group.of(group).all_gather(own.contiguous(), parts, f"whole {name}"))


def load_whole_state_dict(module: nn.Module, state: Mapping[str, Tensor], group=None) -> None:
    """Load a state that was saved whole, at this degree or another. torch's load_state_dict raises
    where it is another model's."""
    group, cut = Group.of(group), cuts(module)
    module.load_state_dict(
        {
            name: cut[name].part(value, group.rank, group.size) if name in cut else value
            for name, value in state.items()
        }
    )
