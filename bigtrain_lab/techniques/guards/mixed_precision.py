"""What would train wrongly in mixed precision: refused in one sentence, before a weight moves.

Two mistakes of a training loop are minded by no operator:

    optimizer.step()
        for mp.step(optimizer): its gradients are S times too large, since nothing has divided them
    clip_grad_norm_(model.parameters(), c)
        for mp.parameters(): the gradients of half weights are their masters', so it finds those of
        norms alone, clips them by their own norm, and leaves all others as long as they were

Both show in the gradients: torch counts the writes to a tensor. A backward notes the count;
dividing all writes once to each, so gradients of norms that were written more often than any
master's were changed alone. What cannot be seen: a model without norms, where such a clip finds no
gradient and says 0; and a bare step of gradients that came before the first scaled loss.
A bare step is seen by one hook that torch calls for every optimizer (there is no way from a weight
to its optimizers); it asks each MixedPrecision that is alive, and looks at no gradient of another.
"""

import weakref
from functools import partial
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..loss_scaler import DynamicLossScaler, held_by
from ..precision_levels import APEX, LEVELS, Level
from ..shards import STEPPED
from . import refuse


def level_of(level: str | Level) -> Level:
    level = APEX.get(level, level) if isinstance(level, str) else level
    refuse(
        (
            not isinstance(level, Level) and level not in tuple(LEVELS),
            (
                f"There is no level of precision called {level!r}: choose one of"
                f" {', '.join(LEVELS)}, or make a Level."
            ),
        )
    )
    return level if isinstance(level, Level) else LEVELS[level]


def refuse_scaler(level: Level, scaler, group) -> None:
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


def refuse_model(model, has_one: bool) -> None:
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


def refuse_formats(model: nn.Module) -> None:
    refuse(
        (
            any(p in STEPPED for part in model.modules() for p in part.parameters(recurse=False)),
            (
                "ZeRO has cut the model's weights into pieces: prepare the model before it, by "
                "prepare(model, masters=False), or give FullyShardedDataParallel a compute_dtype."
            ),
        )
    )
    for name, weight in model.named_parameters():
        refuse(
            (
                weight.is_floating_point() and weight.dtype != torch.float32,
                (
                    f"Weight {name} is {str(weight.dtype)[6:]}: masters begin from the float32"
                    " weights, so pass the model in float32 (model.float() converts it, but what"
                    " was rounded stays rounded)."
                ),
            )
        )


def model_of(model: nn.Module | None) -> nn.Module:
    refuse((model is None, "There is no model yet: call prepare(model) first."))
    return model


def refuse_half_weights(half: bool) -> None:
    refuse(
        (
            half,
            (
                "The optimizer holds half weights and would leave their float32 masters behind:"
                " build it from mp.parameters()."
            ),
        )
    )


def refuse_state(level: Level, own: dict, scales: bool, state: dict) -> None:
    """`own`: the masters of the model that takes the state; `scales`: whether its level does."""
    lacking = {"masters", "scaler"} - state.keys()
    refuse(
        (
            lacking,
            (
                f"The state lacks {' and '.join(sorted(lacking))}: give what mp.state_dict()"
                " returned, not the model's."
            ),
        )
    )
    masters, scaler = state["masters"], state["scaler"]
    refuse(
        (
            own.keys() != masters.keys() or scales != (scaler is not None),
            (
                f"The state has {len(masters)} masters and {'no' if scaler is None else 'a'}"
                f" scaler, {level.name} of this model has {len(own)} and {'a' if scales else 'no'}"
                " scaler: prepare the same model at the level that saved it."
            ),
        )
    )
    for name, master in own.items():
        refuse(
            (
                master.shape != masters[name].shape,
                (
                    f"Master {name} has another shape in the state than in this model: prepare the "
                    "same model that was saved."
                ),
            )
        )


class Arrivals:
    """Which parameters got a gradient since their last step, and how often it was written then."""

    def __init__(self, scaler):
        self.scaler = scaler
        self.noted: dict[nn.Parameter, tuple[weakref.ref, int]] = {}
        if scaler:
            SCALED.add(self)

    def watch(self, parameter: nn.Parameter) -> None:
        """Note each gradient of a weight that has no master, as it comes."""
        parameter.register_post_accumulate_grad_hook(
            partial(note_to, weakref.ref(self))
        )  # a hook that held us would keep both for ever

    def note(self, parameter: nn.Parameter) -> None:
        with torch._C.DisableTorchFunction():
            self.noted[parameter] = weakref.ref(parameter.grad), parameter.grad._version

    def writes(self, parameter: nn.Parameter) -> int | None:
        """To its gradient since a backward brought it; None where none brought the one that is
        there."""
        gradient, before = self.noted.get(parameter, (lambda: None, 0))
        return (
            parameter.grad._version - before
            if parameter.grad is not None and gradient() is parameter.grad
            else None
        )

    def refuse_half_clipped(self, optimizer: Optimizer, masters: set[nn.Parameter]) -> None:
        written = {True: [], False: []}  # of masters, of what needs none
        for parameter in held_by([optimizer]):
            if (times := self.writes(parameter)) is not None:
                written[parameter in masters].append(times)
        clean, master = written[False], written[True]
        refuse(
            (
                clean and master and min(clean) > max(master),
                (
                    "The gradients of the norms were changed after the backward and those of all"
                    " other weights were not, as clip_grad_norm_(model.parameters(), ...) does: the"
                    " others' are their masters', so clip mp.parameters()."
                ),
            )
        )

    def stepped(self, optimizer: Optimizer) -> None:
        for parameter in held_by([optimizer]):
            self.noted.pop(parameter, None)


def note_to(arrivals: weakref.ref, parameter: nn.Parameter) -> None:
    if found := arrivals():
        found.note(parameter)


SCALED = WeakSet()  # arrivals of models whose loss may be scaled


def refuse_bare_step(optimizer: Optimizer, *_) -> None:
    """A step by gradients that a scaled loss brought and nothing has divided."""
    for arrivals in [each for each in SCALED if each.scaler.scaled]:
        unknown = held_by([optimizer]) - arrivals.scaler.learnt
        refuse(
            (
                any(arrivals.writes(parameter) is not None for parameter in unknown),
                (
                    "optimizer.step() was called while its gradients are still"
                    f" {arrivals.scaler.get_scale():,g} times too large: call mp.step(optimizer)"
                    " instead, which divides them first. No weight has moved."
                ),
            )
        )


register_optimizer_step_pre_hook(refuse_bare_step)
