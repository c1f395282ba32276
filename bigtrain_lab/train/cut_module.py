"""A module of one's own as the stages of a pipeline, cut between its blocks.

    rank s   before | its blocks | after        before: on the first rank, after: on the last one

Each rank calls the module's own forward. What other ranks hold is on meta there: it takes no memory
and hardly any time, and leads to the rank's blocks with tensors of the right shapes. The first of
them takes what arrived in their place. The forward ends where a block of the next rank begins. A
message is what that block is given and has a gradient, in one flat tensor.

Memory: while a rank makes the module, the whole of it. guards/cut_module.py tries the stages before
a process starts.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..runtime.memory.saved import replaced
from ..techniques.checkpoint import checkpoint
from ..techniques.guards import cut_module as guard
from ..techniques.mixed_precision import MixedPrecision
from ..techniques.one_process import Sample
from .dry_run import META
from .recipe import Recipe

APART = torch.random.fork_rng(devices=[])  # a decorator: numbers drawn in it are no others'
TRIAL = {"optimizer": partial(torch.optim.SGD, lr=0.1), "steps": 2}


class Ended(BaseException):
    """The next block is another rank's. Its argument is the message."""


class Stage(nn.Module):
    """Those of the `blocks`, paths in `whole`, that are a rank's `own`, and what the module's
    forward does before the first of all blocks or after the last one. `again`: blocks are computed
    again in the backward."""

    def __init__(
        self, whole: nn.Module, blocks: Sequence[str], own: range, number: int, again: bool = False
    ):
        super().__init__()
        self.whole, self.blocks, self.own, self.number = whole, blocks, own, number
        self.again = again

    def forward(self, x: Tensor, *inputs) -> Any:
        """`x`: the message, `inputs`: of the whole module."""
        arrived: dict[Tensor, Tensor] = {}  # in place of which tensor

        def enter(at: int, run: Callable, *given, **named):
            if self.number and at == self.own.start:
                places = learnt(given, named)
                sizes = [each.numel() for each in places]
                # unsafe: no views, so that a block may change one in place
                for place, part in zip(places, x.unsafe_split_with_sizes(sizes)):
                    arrived[place] = part.view(place.shape).to(place.dtype)
            if arrived:
                given, named = tree_map_only(Tensor, lambda t: arrived.get(t, t), (given, named))
            if at == self.own.stop:
                sent = (each.flatten() for each in learnt(given, named))  # none, if all is frozen
                raise Ended(torch.cat([x.new_empty(0, dtype=torch.bfloat16), *sent]))
            return checkpoint(run, *given, **named) if self.again else run(*given, **named)

        with ExitStack() as around:
            for at, path in enumerate(self.blocks[: self.own.stop + 1]):
                way = APART if at < self.own.start else partial(partial, enter, at)
                around.enter_context(replaced(self.whole.get_submodule(path), "forward", way))
            if len(self.own) < len(self.blocks):
                around.enter_context(Elsewhere(x.device))
            try:
                y = self.whole(*inputs)
            except Ended as end:
                (y,) = end.args
        guard.refuse_elsewhere(x, tree_leaves(y))
        return y


def learnt(*given) -> list[Tensor]:
    """The tensors in it that have a gradient."""
    return [each for each in tree_leaves(given) if torch.is_tensor(each) and each.requires_grad]


class Elsewhere(TorchFunctionMode):
    """Of a call with tensors on meta all are on meta: another rank has the values. What is made
    where such a tensor is, such as a mask, is made on this device."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = args, dict(kwargs or {})
        if any(torch.is_tensor(each) and each.is_meta for each in tree_leaves((args, kwargs))):
            args, kwargs = tree_map_only(Tensor, lambda each: each.to(META), (args, kwargs))
        elif kwargs.get("device") == META:
            kwargs["device"] = self.device
        return function(*args, **kwargs)


def recipe_of(
    make: Callable, blocks: Sequence[str], counts: Sequence[int], rows: int, again: bool, **told
) -> Recipe:
    """Make the Recipe of a module. `make()`: the module, (inputs, targets) with samples along dim
    0, and a loss(output, targets). `blocks`: their paths; `counts`: how many each stage has. Its
    micro-batches are `rows` samples of those inputs, again and again: replace `data` by your own.
    `again`: blocks are computed again in the backward; `told`: all else.

    Two micro-batches are trained here first, cut and whole. Impossible where these differ."""
    _, (inputs, targets), loss = make()
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    parts = [range(*each) for each in pairwise(accumulate([0, *counts]))]

    def data(number: int) -> Sample:
        at = torch.arange(number * rows, (number + 1) * rows)
        given, y = tree_map_only(Tensor, lambda each: each[at % len(each)], (inputs, targets))
        return Sample(tree_leaves(given)[0], y, given)

    def model(number: int, level: str | None) -> nn.Module:
        whole = made(make)[0]
        with META:
            like = MixedPrecision(level).prepare(made(make)[0], masters=False)
        for name, _ in [*whole.named_parameters(remove_duplicate=False)]:
            if number not in places[name]:
                owner, _, leaf = name.rpartition(".")
                part = whole.get_submodule(owner)
                delattr(part, leaf)
                setattr(part, leaf, torch.empty_like(like.get_parameter(name), requires_grad=True))
        return Stage(whole, blocks, parts[number], number, again)

    with guard.trial():
        places, tied = places_of(make, blocks, parts, data(0))
        common = {"data": data, "loss": loss, "ranks": len(counts), "tied": tied}
        trial = Recipe(model=partial(model, level=None), **TRIAL, **common)
        cut = APART(trial.alone)()
    module, _, loss = made(make)
    guard.refuse_other(cut, Stage(module, (), range(0), 0), loss, trial)
    return Recipe(model=partial(model, level=told.get("precision")), **common, **told)


@APART
def made(make: Callable) -> tuple:
    """What make() returns, with the same weights on each rank."""
    torch.manual_seed(0)
    return make()


@APART
def places_of(
    make: Callable, blocks: Sequence[str], parts: Sequence[range], sample: Sample
) -> tuple[dict[str, set[int]], dict[str, dict[int, str]]]:
    """By the name of a weight, the stages that have it, and `tied` of a Recipe. Outside of blocks
    it is needed where it gets a gradient, before them or after them; one that gets none is
    everywhere."""
    whole, _, loss = made(make)
    named, last = [*whole.named_parameters(remove_duplicate=False)], len(parts) - 1
    held: dict[Tensor, set[int]] = {p: set() for _, p in named}
    for name, p in named:
        held[p] |= {
            stage
            for stage, part in enumerate(parts)
            if name.startswith(tuple(f"{blocks[at]}." for at in part))
        }
    outside = [p for p, own in held.items() if last and not own and p.requires_grad]
    if outside:
        sent = Stage(whole, blocks, range(0), 0)(*sample[:1], *sample.context)
        x = sent.detach().requires_grad_()
        y = Stage(whole, blocks, range(len(blocks)), 1)(x.clone(), *sample.context)
        # x has a gradient, also where nothing before the blocks has one
        for stage, end in ((0, sent.sum() + x.sum()), (last, loss(y, sample.targets))):
            given = torch.autograd.grad(end, outside, allow_unused=True)
            for p in (p for p, grad in zip(outside, given) if grad is not None):
                held[p].add(stage)
    tied = {
        name: dict.fromkeys(sorted(held[p]), f"whole.{name}")
        for name, p in whole.named_parameters()
        if len(held[p]) > 1 and p.requires_grad
    }
    return {name: held[p] or {*range(last + 1)} for name, p in named}, tied
