"""What would train wrongly in mixed precision: refused in one sentence, before a weight moves.

Two mistakes of a training loop are minded by no operator:

    optimizer.step()
        for mp.step(optimizer): its gradients are S times too large, since nothing has divided them.
        Seen by one hook that torch calls for every optimizer, since there is no way from a weight
        to its optimizers
    clip_grad_norm_(model.parameters(), c)
        for mp.parameters(): it would find the gradients of norms alone. A half weight's `.grad` is
        a stand-in that refuses all use
"""

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from ..loss_scaler import DynamicLossScaler, held_by
from ..precision_levels import APEX, LEVELS, Level
from ..shards import STEPPED
from . import refuse
from .gone import Gone, gone


def level_of(level: str | Level, scaler, group) -> Level:
    name = APEX.get(level, level) if isinstance(level, str) else level
    refuse(
        (
            not isinstance(name, Level) and name not in tuple(LEVELS),
            (
                f"There is no level of precision called {name!r}: choose one of"
                f" {', '.join(LEVELS)}, or make a Level."
            ),
        )
    )
    level = name if isinstance(name, Level) else LEVELS[name]
    refuse(
        (
            scaler is not None and not level.scaling,
            (
                f"{level.name} scales no loss: leave the scaler out, or choose a level that scales,"
                " such as fp16."
            ),
        ),
        (
            scaler is not None and group is not None,
            (
                "group= is for the default scaler: give it to your own, as "
                "DynamicLossScaler(group=group)."
            ),
        ),
        (
            not isinstance(scaler, DynamicLossScaler | None),
            (
                f"The scaler is a {type(scaler).__name__}, which does not tell which optimizers"
                " skip: give a DynamicLossScaler. It takes the state dict of torch's."
            ),
        ),
    )
    return level


def refuse_model(model, has_one: bool, rounds: bool) -> None:
    """`rounds`: the level changes the model."""
    refuse(
        (
            not isinstance(model, nn.Module),
            (
                f"prepare() got a {type(model).__name__}: give it the model, an nn.Module, before"
                " the optimizer is made."
            ),
        ),
        (
            has_one,
            "This MixedPrecision has a model: put several into one nn.ModuleDict, or make another.",
        ),
    )
    # those of a FullyShardedDataParallel too, which calls its pieces parameters
    for name, weight in nn.Module.named_parameters(model) if rounds else ():
        refuse(
            (
                weight in STEPPED,
                (
                    f"Weight {name} has a master, or ZeRO has cut it into pieces: prepare the model"
                    " before it, by prepare(model, masters=False), or give"
                    " FullyShardedDataParallel a compute_dtype."
                ),
            ),
            (
                weight.is_floating_point() and weight.dtype != torch.float32,
                (
                    f"Weight {name} is {str(weight.dtype)[6:]}: masters begin from the float32"
                    " weights, so pass the model in float32 (model.float() converts it, but what"
                    " was rounded stays rounded)."
                ),
            ),
        )


def refuse_step(mp, half: bool) -> None:
    refuse(
        (
            mp.model is None,
            "This MixedPrecision has no model, as a copy of one has none: call prepare(model), and "
            "make the optimizer of its parameters().",
        ),
        (
            mp.model is not None and not mp.moves.keys() <= {*mp.model.parameters()},
            "Weights of the model were replaced since prepare(), as load_state_dict(assign=True) "
            "does it, and the masters are of the old ones: replace them before, or copy values "
            "into them.",
        ),
        (
            half,
            (
                "The optimizer holds half weights and would leave their float32 masters behind:"
                " build it from mp.parameters()."
            ),
        ),
    )


def refuse_state(own: dict, scales: bool, state: dict) -> None:
    """`own`: the masters of the model that takes the state; `scales`: whether its level does."""
    shapes, found = (
        {name: (*master.shape,) for name, master in masters.items()}
        for masters in (own, state["masters"])
    )
    refuse(
        (
            shapes != found or scales != (state["scaler"] is not None),
            "The state is of other masters, or of a level that scales otherwise: prepare the same "
            "model at the level that saved it.",
        )
    )


def of_master(weight: nn.Parameter) -> Gone:
    """The stand-in in the `.grad` of a half weight that has a master."""
    return gone(
        weight,
        "The gradients of half weights are their float32 masters': clip, read and zero those of "
        "mp.parameters(), not of model.parameters().",
    )


# a prepared weight, or its master -> a weak reference to the MixedPrecision
PREPARED = WeakIdKeyDictionary()


def prepared(tensor: torch.Tensor):
    """The MixedPrecision of a weight, or of a master; None where there is none."""
    of = PREPARED.get(tensor)
    return of and of()


def refuse_bare_step(optimizer: Optimizer, *_) -> None:
    """A step by gradients that a scaled loss brought and nothing has divided."""
    held, homes = {}, optimizer.replicas.homes if hasattr(optimizer, "replicas") else ()
    weights = {home.stepped: home.weight for home in homes}  # of the pieces that ZeRO steps
    for p in held_by([optimizer]) if PREPARED else ():
        if p.grad is not None:
            held.setdefault(prepared(weights.get(p, p)), set()).add(p)
    refuse(
        *(
            (
                held[mp] - mp.scaler.learnt,
                (
                    "optimizer.step() was called while its gradients are still"
                    f" {mp.scaler.get_scale():,g} times too large: call mp.step(optimizer)"
                    " instead, which divides them first. No weight has moved."
                ),
            )
            for mp in held
            if mp and mp.scaler and mp.scaler.scaled
        )
    )


register_optimizer_step_pre_hook(refuse_bare_step)
