"""Optimizers that need whole tensors where a rank has parts, and steps on gradients that are not yet
the mean of the ranks: refused before a step moves anything.

Whether an optimizer needs whole tensors is tried: it steps a small tensor, and the parts of it."""

from collections import defaultdict
from copy import deepcopy
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from ...core import Impossible
from ..shards import keeping_dim
from ..tensor_parallel import cut_of

# What torch's hook, which is global, has to know.
PIECES = WeakIdKeyDictionary()  # parameters that are pieces of whole ones
AVERAGED = WeakIdKeyDictionary()  # parameter -> the data parallel model that averages its gradient
TRIED = WeakIdKeyDictionary()  # optimizer -> the sizes of its groups then, its data parallel models
RATE, TOLERANCE = 0.01, 1e-3
OF_ONE_STEP = ("step", "grad_scale", "found_inf")  # what schedulers and torch's GradScaler leave


def watch_averaged(model) -> None:
    AVERAGED.update({each.home: ref(model) for each in model.gradients})
    TRIED.clear()


def before_step(optimizer: Optimizer, args=(), kwargs=None) -> None:
    """Impossible where it needs whole tensors of parts, or gradients are not averaged yet."""
    if torch.compiler.is_compiling():
        return
    if TRIED.get(optimizer, [None])[0] != sizes(optimizer):
        refuse_across(optimizer, lambda p: p in PIECES)
    for model in TRIED[optimizer][1]:
        refuse_unfinished(model())


register_optimizer_step_pre_hook(before_step)


def sizes(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def refuse_unfinished(model) -> None:
    for each in model.gradients:
        if each.used:
            raise Impossible(f"The gradient of {each.name} is that of rank "
                             f"{model.group.world_rank(model.group.rank)} alone: call "
                             "finish_gradient_synchronization() before the optimizer's step().")


def refuse_across(optimizer: Optimizer, is_piece) -> None:
    """One that looks across the elements of a tensor of which this rank has pieces or slices. A
    class may say by an attribute `element_wise` that it does not."""
    ways, models = {}, set()
    for number, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            models |= {AVERAGED[p]} if p in AVERAGED else set()
            if not p.is_meta and (is_piece(p) or cut_of(p)):
                along = None if is_piece(p) else cut_of(p).dim
                if not knows_its_ranks(optimizer, p):
                    ways.setdefault((number, p.dim(), along), p)
    for (number, _, along), p in ways.items():
        cause = None
        with torch.random.fork_rng([p.device] if p.is_cuda else []):
            try:
                across = looks_across(optimizer, number, p, along)
            except Exception as error:  # whatever a stranger's class raises
                across, cause = True, error
        if across:
            raise Impossible(f"{type(optimizer).__name__} looks across the elements of a tensor, of "
                             "which a rank has only some: take one that steps each element by "
                             "itself, such as AdamW, or LAMB or LARS with group= (and pieces=lambda "
                             "p: True over FullyShardedDataParallel).") from cause
    TRIED[optimizer] = sizes(optimizer), models


def knows_its_ranks(optimizer: Optimizer, p: Tensor) -> bool:
    if getattr(optimizer, "element_wise", False):
        return True
    return getattr(optimizer, "ranks", None) is not None and optimizer.pieces(p)


def looks_across(optimizer: Optimizer, number: int, like: Tensor, along: int | None) -> bool:
    """Whether a small tensor moves otherwise than its parts do, which lie `along` a dimension, or,
    with None, anywhere. `like`: a parameter of that group."""
    draw = torch.Generator().manual_seed(0)
    shape = (4, 6, *[1] * (like.dim() - 2)) if like.dim() > 1 else (24,)
    x, *gradients = torch.randn(3, *shape, generator=draw, dtype=torch.float64).to(like.device)
    x *= torch.arange(1, 25, device=x.device).view(shape)  # no part is like another
    gradients[1] *= 1000  # beyond what a clip by the norm lets pass

    def parts(whole: Tensor):
        if along is not None:
            return whole.chunk(2, along)
        return [keeping_dim(part, whole) for part in whole.flatten().split([11, 13])]
    moved = movements(optimizer, number, like, x, gradients)
    for at, part in enumerate(parts(x)):
        own = movements(optimizer, number, like, part, [parts(g)[at] for g in gradients])
        for found, whole in zip(own, moved):
            expected = parts(whole)[at]
            if (found - expected).norm() > TOLERANCE * expected.norm():
                return True
    return False


def movements(optimizer: Optimizer, number: int, like: Tensor, x: Tensor,
              gradients: list[Tensor]) -> list[Tensor]:
    """What a copy of the optimizer does to x, in place of the parameters of a group, step by step.
    State that the optimizer has of `like` has one value everywhere here."""
    p, trial, found = nn.Parameter(x.clone()), object.__new__(type(optimizer)), []
    state = defaultdict(dict)
    for name, value in optimizer.state.get(like, {}).items():
        if isinstance(value, Tensor) and value.shape == like.shape:
            value = torch.full_like(x, float(value.flatten()[:1].sum()))
        state[p][name] = deepcopy(value)
    memo = {id(optimizer): trial, id(optimizer.state): state}
    memo |= {id(each): p for group in optimizer.param_groups for each in group["params"]}
    settings = {name: value for name, value in vars(optimizer).items()
                if name not in OF_ONE_STEP and "hooks" not in name}
    trial.__setstate__(deepcopy(settings, memo))
    trial.param_groups[:] = trial.param_groups[number:number + 1]
    for group in trial.param_groups:
        group["params"][:] = [p]
        if "lr" in group:
            rate = group["lr"]
            group["lr"] = torch.full_like(rate, RATE) if isinstance(rate, Tensor) else RATE
    for gradient in gradients:
        before, p.grad = p.detach().clone(), gradient.clone()
        type(trial).step(trial)
        found.append(p.detach() - before)
    return found
