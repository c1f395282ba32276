"""Refusals of replicas: gradients that they would average wrongly, and reads of one in flight."""

import torch
from torch import Tensor

from ...core import Impossible
from ...runtime.talk.message import Shape
from . import Gone, by_ranks, gone, is_gone, real, who


def on_its_way(parameter: Tensor, name: str, replicas) -> Gone:
    """The stand-in in a `.grad` until the mean is there."""
    what = f"The gradient of parameter {name} on {who(replicas)} was used"
    told = (
        f"{what} after it had left for the ranks' pieces: call finish_gradient_synchronization(),"
        " read it in the optimizer's param_groups, clip by its clip_grad_norm_(), scale by a "
        "DynamicLossScaler and not by torch's GradScaler, and drop it by its zero_grad()."
        if replicas.stage
        else f"{what} on its way to the ranks' mean: call finish_gradient_synchronization() before."
    )
    return gone(parameter, told)


def refuse_dropped(replicas, k: int, n: int) -> None:
    """Refuse that a gradient was dropped or replaced after it was sent."""
    held, this = replicas.held[k], replicas.held[k].homes[n].name
    left = n not in held.came if replicas.stage < 3 else n not in held.unsent
    if left:
        raise Impossible(
            f"The gradient of {this} on {who(replicas)} was replaced or dropped on its way: call "
            "finish_gradient_synchronization() after the backward, before step(), zero_grad(), and "
            "what replaces it, such as the sum of a tied weight's copies."
        )


def refuse_unseen(replicas) -> None:
    """Refuse gradients of a unit whose outputs no backward passed: they were never sent."""
    for held in replicas.held if replicas.stage == 3 else ():
        for n in held.unsent:
            raise Impossible(
                f"{held.homes[n].name} on {who(replicas)} got a gradient, and no backward passed "
                "what its unit returned: let it return tensors, or a dataclass of them, or name a "
                "larger module in units=."
            )


def refuse_written(held) -> None:
    """Refuse a write to a gathered weight at stage 3: it reaches no piece, and is lost."""
    for home, writes in zip(held.homes, held.writes):
        if home.weight._version != writes:
            raise Impossible(
                f"Parameter {home.name} was changed in place after the module was wrapped, and "
                "ranks keep pieces of it: change it before, or load values by "
                "load_full_state_dict()."
            )


def refuse_gradient(replicas, k: int, n: int, found: Tensor | None) -> None:
    """Refuse a gradient that is missing, sparse, of another shape, or too late."""
    held, rules = replicas.held[k], replicas.rules
    home, view = held.homes[n], held.views[n]
    before = home.stepped.grad if replicas.stage in (1, 2) else None
    this = f"Parameter {home.name} on {who(replicas)}"
    if found is None or is_gone(found):
        raise Impossible(
            f"{this} has lost its gradient to a hook, as that of MixedPrecision's "
            "masters is: prepare the model before it is wrapped, and under ZeRO "
            "without masters, by prepare(model, masters=False)."
        )
    if found.layout is not torch.strided:
        raise Impossible(
            f"{this} has a gradient that is {found.layout}: dense gradients are cut "
            "and summed, so take sparse=False."
        )
    if Shape.of(found) != Shape.of(view) or found.device != view.device:
        raise Impossible(
            f"{this} is {Shape.of(found)} on {found.device} and was {Shape.of(view)} on "
            f"{view.device} when it was wrapped: change the module before."
        )
    if before is not None and n not in held.used and not is_gone(before):
        raise Impossible(
            f"{this} gets a gradient before the last one was dropped: call the optimizer's "
            "zero_grad() after its step."
        )
    if replicas.stage < 2 and held.used and k not in rules.queue:
        raise Impossible(
            f"{this} got a gradient after its bucket had left: call "
            "finish_gradient_synchronization() before, use no_sync(), or set backwards."
        )


def refuse_foreign(replicas) -> None:
    """Refuse gradients that no hook saw, and parameters that are new or were unfrozen."""
    for home in (site.home for site in replicas.sites if replicas.stage):
        if real(home.weight.grad) is not None:
            raise Impossible(
                f"Parameter {home.name} on {who(replicas)} has a gradient that no "
                "backward brought, as a master of MixedPrecision has: prepare(model, "
                "masters=False), and give model.parameters(), of which ZeRO keeps "
                "masters in parts."
            )
    known = replicas.pieces
    for name, parameter in replicas.module.named_parameters():
        if parameter not in known and replicas.frozen.get(name) is not parameter:
            raise Impossible(
                f"Parameter {name} on {who(replicas)} was put in after the module was wrapped, and "
                "nobody averages it: change the module before you wrap it."
            )
    for name, parameter in replicas.frozen.items():
        if parameter.grad is not None:
            raise Impossible(
                f"Parameter {name} on {who(replicas)} was frozen when it was wrapped and "
                "has a gradient now, which nobody averages: wrap the module anew."
            )


def refuse_moved(replicas) -> None:
    for held in replicas.held if replicas.stage in (1, 2) else ():
        for home, view in zip(held.homes, held.views):
            if home.weight.data_ptr() != view.data_ptr() or home.weight.shape != view.shape:
                raise Impossible(
                    f"Parameter {home.name} on {who(replicas)} has other memory or another "
                    "shape than when its pieces were made: change the module before."
                )


def refuse_unused(model, unused: list[str], by_rank: list[str]) -> None:
    """`by_rank`: names of the unused parameters of each rank; empty where all lack the same."""
    if model.allow_unused or not (unused or by_rank):
        return
    every = by_rank or ["\n".join(unused)] * model.group.size
    told = by_ranks(model.group, [text.replace("\n", ", ") for text in every])
    raise Impossible(
        f"Parameters got no gradient, on {told}; let every rank's loss depend on "
        "them, freeze them, or pass allow_unused=True."
    )
