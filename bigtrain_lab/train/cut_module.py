"""A module of one's own as the stages of a pipeline, cut between its blocks.

    rank s   before | its blocks | after        before: on the first rank, after: on the last one

Each rank calls the module's own forward. What other ranks hold is on meta there: it takes no memory
and hardly any time, and leads to the rank's blocks with tensors of the right shapes. The first of
them takes what arrived in their place. The forward ends where a block of the next rank begins. A
message is what that block is given and has a gradient, in one flat tensor.

Memory: while a rank makes the module, the whole of it.
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

from ..core import refuse
from ..runtime.memory.saved import replaced
from ..techniques.checkpoint import checkpoint
from ..techniques.one_process import Sample
from .dry_run import META
from .recipe import Recipe


def recipe_of(
    make: Callable, blocks: Sequence[str], counts: Sequence[int], rows: int, again: bool, **told
) -> Recipe:
    """Make the Recipe of a module. `make()`: the module, (inputs, targets) with samples along dim
    0, and a loss(output, targets). `blocks`: their paths; `counts`: how many each stage has. Its
    micro-batches are `rows` samples of those inputs, again and again: replace `data` by your own.
    `again`: blocks are computed again in the backward; `told`: all else."""
    _, (inputs, targets), loss = make()
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    before, after, both = ends_of(make, blocks)
    parts, last = [range(*each) for each in pairwise(accumulate([0, *counts]))], len(counts) - 1

    def model(number: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same weights on each rank
            whole = make()[0]
        own = tuple(f"{blocks[at]}." for at in parts[number])
        kept = (before if number == 0 else set()) | (after if number == last else set())
        for name, p in [*whole.named_parameters(remove_duplicate=False)]:
            if name not in kept and not name.startswith(own):
                owner, _, leaf = name.rpartition(".")
                part = whole.get_submodule(owner)
                delattr(part, leaf)
                setattr(part, leaf, torch.empty_like(p, device=META, requires_grad=True))
        return Stage(whole, blocks, parts[number], number, again)

    def data(number: int) -> Sample:
        at = torch.arange(number * rows, (number + 1) * rows)
        given, y = tree_map_only(Tensor, lambda each: each[at % len(each)], (inputs, targets))
        return Sample(given[0], y, given)

    tied = {name: dict.fromkeys((0, last), f"whole.{name}") for name in both if last}
    return Recipe(model=model, data=data, loss=loss, ranks=len(counts), tied=tied, **told)


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
        arrived: list[Tensor] = []

        def enter(at: int, run: Callable, y: Tensor, *given, **named):
            if self.number:
                if at == self.own.start:
                    places = [y, *learnt(given, named)]
                    flat = x.split([each.numel() for each in places])
                    y, *others = [
                        part.view(to.shape).to(to.dtype) for part, to in zip(flat, places)
                    ]
                    arrived.extend(others)
                refuse(
                    (
                        len(learnt(given, named)) != len(arrived),
                        f"{self.blocks[at]} is given other tensors than the blocks before it, so"
                        " the module cannot be cut there: take a plan with pp 1.",
                    )
                )
                rest = iter(arrived)
                given, named = tree_map_only(
                    Tensor, lambda each: next(rest) if each.requires_grad else each, (given, named)
                )
            if at == self.own.stop:
                raise Ended(torch.cat([each.flatten() for each in (y, *learnt(given, named))]))
            return checkpoint(run, y, *given, **named) if self.again else run(y, *given, **named)

        with ExitStack() as around:
            for at in range(self.own.start, min(self.own.stop + 1, len(self.blocks))):
                block = self.whole.get_submodule(self.blocks[at])
                around.enter_context(replaced(block, "forward", partial(partial, enter, at)))
            if self.number:
                around.enter_context(Elsewhere(x.device))
            try:
                y = self.whole(*inputs)
            except Ended as end:
                (y,) = end.args
        refuse(
            (
                not x.is_meta and any(getattr(each, "is_meta", False) for each in tree_leaves(y)),
                "A block or what follows them needs what another rank computed before them, so the"
                " module cannot be cut: take a plan with pp 1.",
            )
        )
        return y


def learnt(*given) -> list[Tensor]:
    """The tensors in it that have a gradient."""
    return [each for each in tree_leaves(given) if torch.is_tensor(each) and each.requires_grad]


def ends_of(make: Callable, blocks: Sequence[str]) -> tuple[set[str], set[str], set[str]]:
    """Names of the weights outside of blocks that get a gradient before them, and after them; of
    those that get both, one name each."""
    with META:
        whole, (inputs, targets), loss = make()
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        sent = Stage(whole, blocks, range(0), 0)(inputs[0], *inputs)
        x = sent.detach().requires_grad_()
        y = loss(Stage(whole, blocks, range(len(blocks)), 1)(x, *inputs), targets)
    inside = tuple(f"{block}." for block in blocks)
    names = {
        name: p
        for name, p in whole.named_parameters(remove_duplicate=False)
        if not name.startswith(inside)
    }
    found: list[set[str]] = []
    for end in (sent + x, y):  # x has a gradient, also where nothing before the blocks has one
        given = torch.autograd.grad(end, names.values(), end, allow_unused=True)
        found.append({name for name, grad in zip(names, given) if grad is not None})
    return *found, found[0] & found[1] & {name for name, _ in whole.named_parameters()}
