"""Optimizers that need whole tensors, or all tensors, where a rank has some: refused in time.

It is tried what an optimizer needs, in a few steps. It steps a small and a larger tensor, and the
parts of each; and two tensors, of which the other one's gradient grows. Not found is one that looks
across in later steps, or in larger tensors, only.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from math import prod

import torch
from torch import Tensor, nn, optim
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from ..shards import keeping_dim
from ..tensor_parallel import cut_of
from . import refuse
from .gone import Piece, WeightPiece

# what replicas step in place of a weight, at stages 1 to 3 -> how many ranks have a piece of it; a
# module's own parameter, empty at stage 3 -> the rank
PIECES = WeakIdKeyDictionary()
TRIED = WeakIdKeyDictionary()  # optimizer -> the number of its parameters then, and its pieces
LAST = WeakIdKeyDictionary()  # optimizer -> its last hook
FOUND: dict[tuple, bool] = {}  # what decides a trial -> whether it found a look across
# torch's own that step each element by itself, whatever their settings: a rank need not try them
OF_TORCH = {
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adagrad,
    optim.RMSprop,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.Adadelta,
    optim.ASGD,
    optim.Rprop,
}
STEPS = 12  # of a trial: some look across later than in their first step
SIZES = (4, 6), (96, 100)  # of what is tried: some have another rule for large tensors


def is_part(parameter: Tensor) -> bool:
    """Whether other ranks hold the rest of this weight."""
    sharers = PIECES.get(parameter)
    return bool(cut_of(parameter)) or isinstance(sharers, int) and sharers > 1


def before_step(optimizer: Optimizer, args=(), kwargs=None) -> None:
    if torch.compiler.is_compiling() or hasattr(optimizer, "replicas"):
        return
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if TRIED.get(optimizer, (None,))[0] != len(held):
        refuse_across(optimizer)
    for hook in LAST.pop(optimizer, ()):
        hook.remove()
    if TRIED[optimizer][1]:
        after = optimizer.register_step_post_hook(show)
        LAST[optimizer] = after, optimizer.register_step_pre_hook(let_read)
        # the first one; torch has no public name for that
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)


def let_read(optimizer: Optimizer, args, kwargs) -> None:
    """The last hook before a step: an optimizer that was let through may read its pieces, and a
    user's hook may not."""
    show(optimizer, kind=nn.Parameter)
    for p in TRIED[optimizer][1]:
        if isinstance(p.grad, Piece):
            p.grad = p.grad.as_subclass(Tensor)


def show(optimizer: Optimizer, *_, kind: type = WeightPiece) -> None:
    """The first hook after a step: nobody else may read its pieces of weights."""
    for p in TRIED[optimizer][1]:
        if p in PIECES and is_part(p):
            p.__class__ = kind


register_optimizer_step_pre_hook(before_step)


def refuse_across(optimizer: Optimizer) -> None:
    """One that looks across the elements of a tensor of which this rank has a piece or a slice. A
    class may say by an attribute `element_wise` that it does not, as one that draws noise must."""
    every = [(n, p) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
    ways, told = {}, type(optimizer) in OF_TORCH or getattr(optimizer, "element_wise", False)
    ranks = optimizer.ranks if hasattr(optimizer, "among") else None  # of LAMB and LARS
    for number, p in every:
        sharers = PIECES.get(p)
        refuse(
            (
                isinstance(sharers, str),
                f"An optimizer on {sharers} has the module's own parameters, "
                "which are empty between uses: build it over model.parameters(), of "
                "the FullyShardedDataParallel.",
            )
        )
        cut = None if sharers else cut_of(p)
        # of more ranks than have its pieces others may count them: those of another slice
        counted = ranks and (optimizer.pieces(p) or ranks.size > (sharers or ranks.size))
        if (sharers or cut) and not (p.is_meta or told or counted):
            ways[number, p.dim(), cut and cut.dim] = p, cut
    for (number, *_), (p, cut) in ways.items():
        try:
            with torch.random.fork_rng([p.device] if p.is_cuda else []):
                fault = looks_across(optimizer, number, p, cut) and "looks across"
        except Exception as cause:  # whatever a stranger's class raises
            fault = f"could not be tried ({cause}) on"
        refuse(
            (
                fault,
                f"{type(optimizer).__name__} {fault} the elements of a tensor, of "
                "which a rank has only some: take one that steps each element by "
                "itself, such as AdamW, or that says so by element_wise = True, or "
                "LAMB or LARS with group= (and pieces=lambda p: True over "
                "FullyShardedDataParallel).",
            )
        )
    TRIED[optimizer] = (
        len({id(p) for _, p in every}),
        [p for _, p in every if p in PIECES or cut_of(p)],
    )


def looks_across(optimizer: Optimizer, number: int, like: Tensor, cut) -> bool:
    """Whether a small tensor moves otherwise than its parts do: slices by `cut`, or pieces. It
    takes the place of `like`, of group `number`. Optimizers of one class and of equal settings are
    tried once; one that has state, or a setting that is a tensor or a function, by itself."""
    own = settings(optimizer) | optimizer.param_groups[number]
    own = {
        name: each for name, each in own.items() if name not in ("params", "param_groups", "state")
    }
    settled = is_plain(own) and not optimizer.state.get(like)
    what = (
        type(optimizer),
        type(optimizer).step,
        repr(own),
        like.dim(),
        like.device,
        cut and cut.dim,
    )
    if settled and what in FOUND:
        return FOUND[what]

    def parts(whole: Tensor):
        pieces = whole.flatten().tensor_split([whole.numel() * 11 // 24])
        return whole.chunk(2, cut.dim) if cut else [keeping_dim(each, whole) for each in pieces]

    def apart(x: Tensor, *gradients: Tensor) -> bool:
        whole = [*map(parts, islice(movements(optimizer, number, like, x, gradients), STEPS))]
        return any(
            (found - expected[at]).norm() > 1e-3 * expected[at].norm()  # no rounding of float64
            for at, part in enumerate(parts(x))
            for found, expected in zip(
                movements(optimizer, number, like, part, [parts(g)[at] for g in gradients]), whole
            )
        )

    found = any(apart(*drawn(like, size)) for size in SIZES)
    if settled:
        FOUND[what] = found
    return found


def settings(optimizer: Optimizer) -> dict:
    """Its attributes, without what schedulers and torch's GradScaler leave on it for its own
    step."""
    return {
        name: each
        for name, each in vars(optimizer).items()
        if not ("hooks" in name or name in ("step", "grad_scale", "found_inf"))
    }


def is_plain(value) -> bool:
    """Whether two that read alike are alike: numbers and texts of Python, and lists of them."""
    if type(value) in (dict, list, tuple):
        return all(map(is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or type(value) in (bool, int, float, str)


def refuse_beyond(optimizer: Optimizer, count: int, owners: str, instead: str) -> None:
    """One that looks beyond a tensor, as it clips by the norm of all, where each of `count`
    `owners` has some of the model's tensors. One that cannot be tried is let through, and on meta
    tensors, which have no values, nothing is tried."""
    like, found = optimizer.param_groups[0]["params"][0], False
    if like.is_meta or count == 1:
        return
    with suppress(Exception), torch.random.fork_rng([like.device] if like.is_cuda else []):
        x, *gradients = drawn(like, SIZES[0])
        one, other = (
            torch.stack([*islice(movements(optimizer, 0, like, x, gradients, [size * x]), STEPS)])
            for size in (0.001, 1000)
        )
        found = bool((one - other).norm() > 1e-3 * one.norm())
    refuse(
        (
            found,
            f"{type(optimizer).__name__} steps a tensor by the gradients of others too, such as by "
            f"the norm of all, and each of the {count} {owners} has an optimizer: {instead}.",
        )
    )


def drawn(like: Tensor, size: tuple[int, int]) -> Tensor:
    """A tensor in place of `like`, of which no part is like another, and the gradients of STEPS
    steps."""
    shape = (*size, *[1] * (like.dim() - 2)) if like.dim() > 1 else (prod(size),)
    made = torch.randn(
        1 + STEPS, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(like.device)
    made[0] *= torch.arange(1, 1 + prod(size), device=made.device).view(shape)
    made[2::2] *= 1000  # more than a clip by a norm lets pass
    return made


def movements(
    optimizer: Optimizer,
    number: int,
    like: Tensor,
    x: Tensor,
    gradients: list[Tensor],
    beside: Sequence[Tensor] = (),
) -> Iterator[Tensor]:
    """What a copy of the optimizer does to x, step by step; after the last step a TypeError, where
    it keeps what cannot be cut. What state it has of each element of `like` has one value
    everywhere; nothing leads from the copy to the optimizer's own tensors. `beside`: gradients of
    other parameters, in every step."""
    p, trial, state = nn.Parameter(x.clone()), object.__new__(type(optimizer)), defaultdict(dict)
    memo = {id(each): p for group in optimizer.param_groups for each in group["params"]}
    memo |= {id(optimizer): trial, id(optimizer.state): state}
    memo[id(getattr(optimizer, "ranks", None))] = None  # this rank tries alone
    others = [nn.Parameter(torch.ones_like(gradient)) for gradient in beside]
    for name, value in optimizer.state.get(like, {}).items():
        if isinstance(value, Tensor) and value.shape == like.shape:
            value = torch.full_like(x, float(value.flatten()[:1].sum()))
        state[p][name] = deepcopy(value, memo)
    trial.__setstate__(deepcopy(settings(optimizer), memo))
    trial.param_groups[:] = [group] = trial.param_groups[number : number + 1]
    group["params"][:] = [p, *others]
    if "lr" in group:
        group["lr"] = group["lr"] * 0 + 0.01  # a tensor stays one
    for gradient in gradients:
        before, p.grad = p.detach().clone(), gradient.clone()
        for other, its in zip(others, beside):
            other.grad = its.clone()
        type(trial).step(trial)
        yield p.detach() - before
    kept = [each for each in tree_leaves(state[p]) if isinstance(each, Tensor)]
    refuse(
        (
            any(each.numel() > 1 and each.shape != p.shape for each in kept),
            "it keeps state of another shape than its parameter's",
        ),
        error=TypeError,
    )
