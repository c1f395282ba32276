"""What cannot run in a pipeline, or would train wrongly in silence: refused in one sentence.

`refuse` and `refuse_optimizers` see what is put together; the rest looks at what a step is given
and at what comes out of a stage.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ...core import Impossible
from ...order.schedule import Action, Schedule
from ...runtime.talk.group import Group
from ..loss_scaler import DynamicLossScaler, held_by
from ..prepared_model import masters_of, precisions
from . import refuse as refuse_any
from .optimizers import refuse_beyond
from .schedules import backward_after_update, called


def refuse_size(group: Group, schedule: Schedule) -> None:
    refuse_any(
        (
            group.size != schedule.ranks,
            f"The schedule is for {schedule.ranks} ranks and the group has "
            f"{group.size}: make them equal.",
        )
    )


def stages_of(rank: int, order: list, given) -> dict[int, nn.Module]:
    """stage -> module, of the stages that this rank's order runs."""
    own = sorted({action.stage for step in order for action in step})
    modules = [given] if isinstance(given, nn.Module) else list(given)
    refuse_any(
        (
            len(modules) != len(own),
            f"Rank {rank} holds stages {own} and got {len(modules)} modules: give one a stage.",
        )
    )
    return dict(zip(own, modules))


def refuse(
    group: Group,
    schedule: Schedule,
    order: list,
    modules: Mapping[int, nn.Module],
    optimizer,
    scale,
    tied,
    update=None,
) -> None:
    """`order`: this rank's steps; `modules`: its stages; the rest as it was given to Pipeline."""
    refuse_any(
        (
            schedule.asynchronous and optimizer is None,
            f"{called(schedule)} updates after each micro-batch: pass optimizer=, such "
            "as lambda p: torch.optim.SGD(p, 0.1).",
        ),
        (
            update and (schedule.asynchronous or optimizer),
            "update= is for a synchronous schedule without optimizer=: give "
            + ("one of the two." if optimizer else "optimizer= in its place."),
        ),
    )
    for stage, module in modules.items():
        refuse_module(schedule, stage, module)
    if optimizer:
        refuse_shared(group.rank, modules)
    prepared = precisions(modules.values())
    refuse_any(
        (
            len(prepared) > 1,
            "The rank's stages were prepared by several MixedPrecisions: prepare all "
            "in one, as nn.ModuleList(stages).",
        ),
        (
            schedule.asynchronous and (scale or any(mp.masters for mp in prepared)),
            f"{called(schedule)} updates while other micro-batches run, when no loss "
            "scale and no master weight may change: take a synchronous schedule, or "
            "train in full precision.",
        ),
        (
            optimizer and scale,
            "optimizer= would step on scaled gradients: leave it out, and call "
            "mp.step(optimizer) and mp.update() after step().",
        ),
        *(
            (
                mp.scaler and not scale,
                f"The stages were prepared at {mp.level.name}, whose loss is scaled: "
                "pass scale=mp.scale.",
            )
            for mp in prepared
        ),
        (
            group.size > 1 and skips_alone(scale),
            f"{group.size} ranks would skip steps each for itself: let them agree by "
            "MixedPrecision(level, group=group), or DynamicLossScaler(group=group).",
        ),
    )
    for name, places in tied.items():
        refuse_tie(group.rank, schedule, order, modules, name, places)


def refuse_module(schedule: Schedule, stage: int, module) -> None:
    refuse_any(
        (
            not isinstance(module, nn.Module),
            f"Stage {stage} is a {type(module).__name__}: give an nn.Module, or a "
            "list of them in order of stage.",
        )
    )
    ranks = {schedule.rank_of(stage, m) for m in range(schedule.micro_batches)}
    refuse_any(
        (
            any(isinstance(part, nn.parallel.DistributedDataParallel) for part in module.modules()),
            f"Stage {stage} is wrapped in torch's DistributedDataParallel, which "
            "reduces at every backward: give the module itself.",
        ),
        (
            schedule.asynchronous
            and any(getattr(part, "max_norm", None) is not None for part in module.modules()),
            f"Stage {stage} has an embedding with a max_norm, which writes to weights in a "
            f"forward, and {called(schedule)} has several versions of them: leave max_norm out.",
        ),
        (
            len(ranks) > 1,
            f"{called(schedule)} runs stage {stage} on ranks {sorted(ranks)}, whose "
            "weights would part: simulate it, or keep each stage on one rank.",
        ),
    )


def refuse_shared(rank: int, modules: Mapping[int, nn.Module]) -> None:
    """A parameter in two stages of one rank would be updated twice."""
    named = [(*each, stage) for stage in modules for each in modules[stage].named_parameters()]
    first = {parameter: stage for _, parameter, stage in reversed(named)}
    refuse_any(
        *(
            (
                first[parameter] != stage,
                f"Rank {rank} has {name} in stages {first[parameter]} and {stage}, which "
                "would update it twice: leave optimizer= out, and step yourself.",
            )
            for name, parameter, stage in named
        )
    )


def skips_alone(scale) -> bool:
    """Whether the method of a scaler, or of a MixedPrecision, knows of no other ranks."""
    owner = getattr(scale, "__self__", None)
    scaler = getattr(owner, "scaler", owner)
    one = isinstance(scaler, (DynamicLossScaler, torch.amp.GradScaler)) and scaler.is_enabled()
    return one and getattr(scaler, "group", None) is None  # torch's has none


def refuse_tie(
    rank: int,
    schedule: Schedule,
    order: list,
    modules: Mapping[int, nn.Module],
    name: str,
    places: Mapping[int, str],
) -> None:
    own = {stage: dict(modules[stage].named_parameters()) for stage in places if stage in modules}
    refuse_any(
        (
            schedule.asynchronous,
            f"{called(schedule)} updates its stages at different times, so copies of a "
            "tied weight would part: take a synchronous schedule.",
        ),
        *(
            (
                not 0 <= stage < schedule.stages,
                f"Tied weight {name!r} names stage {stage}, and the stages are 0 to "
                f"{schedule.stages - 1}.",
            )
            for stage in places
        ),
        *(
            (
                places[stage] not in parameters,
                f"Tied weight {name!r} is called {places[stage]!r} on stage {stage}, "
                "which has no such parameter: give its name there.",
            )
            for stage, parameters in own.items()
        ),
    )
    refuse_any(
        (
            len({parameters[places[stage]] for stage, parameters in own.items()}) < len(own),
            f"Stages {sorted(own)} of rank {rank} share the parameter of tied weight "
            f"{name!r}, so its gradients add up there: name one of them.",
        ),
        (
            backward_after_update(order, own),
            f"{called(schedule)} updates on rank {rank} before the last backward of "
            f"tied weight {name!r}: put its updates at the end.",
        ),
    )


def refuse_optimizers(
    optimizers: Mapping[int, torch.optim.Optimizer],
    modules: Mapping[int, nn.Module],
    schedule: Schedule,
    loss_fn,
) -> None:
    """One that holds half weights would never see their gradients, which go to the masters; one
    that clips would clip each stage by a norm of its own, which turns the gradient."""
    masters, last = masters_of(modules.values()), optimizers.get(schedule.stages - 1)
    if last and isinstance(loss_fn, nn.Module):
        refuse_any(
            (
                {p for p in loss_fn.parameters() if p.requires_grad} - held_by([last]),
                "loss_fn has parameters, which optimizer= is not given: put them into the last "
                "stage, or leave optimizer= out and step yourself.",
            )
        )
    for each in optimizers.values():
        refuse_any(
            (
                isinstance(each, torch.optim.LBFGS),
                "LBFGS needs the whole loss again inside its step: take an optimizer "
                "without a closure, such as Adam.",
            ),
            (
                any(p in masters for group in each.param_groups for p in group["params"]),
                "optimizer= would hold half weights, whose gradients are their "
                "masters': leave it out, and after step() call mp.step(optimizer) of "
                "one that is built from mp.parameters().",
            ),
        )
        refuse_beyond(
            each,
            schedule.stages,
            "stages",
            "leave that and optimizer= out, call clip_grad_norm(parameters, c, group) after "
            "step(), and step yourself",
        )


# -- at a step -------------------------------------------------------------------------------------


def refuse_step(
    known: Mapping[int, list],
    modules: Mapping[int, nn.Module],
    optimizers: Iterable[torch.optim.Optimizer] = (),
) -> None:
    """Refuse a step where gradients are off, of a stage with other parameters than those `known` to
    optimizers and ties, or with gradients that these optimizers would use and no step made."""
    refuse_any(
        (
            not torch.is_grad_enabled(),
            "step() was called where gradients are off: call it outside "
            "torch.no_grad() and torch.inference_mode().",
        ),
        (
            any(
                p.grad is not None and p.grad.as_subclass(Tensor).count_nonzero()
                for p in held_by(optimizers)
            ),
            "There are gradients of another backward, and optimizer= would step by them too: call "
            "zero_grad() after it, or leave optimizer= out and step yourself.",
        ),
        *(
            (
                {*parameters} != {*modules[stage].parameters()},
                f"Parameters of stage {stage} were replaced since the Pipeline was made, as "
                "load_state_dict(assign=True) does it, and its optimizers have the old ones: "
                "replace them before, or copy values into them.",
            )
            for stage, parameters in known.items()
        ),
    )


def micro_batches(schedule: Schedule, rank: int, what: str, batch) -> list:
    """The batch as the schedule's micro-batches."""
    m = schedule.micro_batches
    refuse_any(
        (batch is None, f"Rank {rank} holds the stage that needs {what}: pass them to step().")
    )
    cut, count = isinstance(batch, Tensor) and what != "weights", len(batch)
    refuse_any(
        (
            cut and count % m,
            f"{count} {what} do not divide into {m} micro-batches: use a multiple of {m}.",
        ),
        (
            not cut and count != m,
            f"Got {count} micro-batches of {what} and the schedule has {m}: make them equal.",
        ),
    )
    return list(batch.chunk(m) if cut else batch)


def refuse_output(
    action: Action, y, module: nn.Module, later: Mapping, is_last: bool = False
) -> None:
    """What comes out of a stage must carry the gradient back; a first stage may be frozen. A
    subclass of Tensor would arrive as a plain one."""
    is_one = isinstance(y, Tensor)
    learns = action.stage > 0 or any(weight.requires_grad for weight in module.parameters())
    refuse_any(
        (
            not is_one or type(y) not in (Tensor, nn.Parameter) and not is_last,
            f"Stage {action.stage} returned a {type(y).__name__}: between stages "
            "travels one plain tensor.",
        ),
        (
            is_one and not y.requires_grad and learns,
            f"The output of stage {action.stage} has no graph (detached, or made "
            "under no_grad), so no gradient can go back: return it with its graph.",
        ),
    )
    if action.micro_batch == 0 and action[1:] in later:
        refuse_used_twice(action.stage, y, later[action[1:]].postponed)


def gradient(action: Action, x: Tensor) -> Tensor:
    """dL/dx of a stage's input, for the stage before."""
    refuse_any(
        (
            x.grad is None,
            f"The output of stage {action.stage} does not depend on its input, so no "
            "gradient can go back: let it use its input.",
        )
    )
    return x.grad


def refuse_used_twice(stage: int, y: Tensor, postponed: Iterable[Tensor]) -> None:
    """A weight whose gradient comes half in I and half in W would have its hooks run on halves."""
    if both := parameters_below([y]) & parameters_below(postponed):
        raise Impossible(
            f"A weight of shape {tuple(both.pop().shape)} of stage {stage} is used by "
            "a Linear or an Embedding and elsewhere too, so that halves of its "
            "gradient would come in I and in W: choose whole backwards."
        )


def refuse_around(schedule: Schedule, stage: int, y: Tensor, module: nn.Module) -> None:
    """A weight that a stage has in a list or a closure too is found there in its newest version."""
    if around := parameters_below([y], "AtVersionBackward") & {*module.parameters()}:
        raise Impossible(
            f"Stage {stage} uses a weight of shape {tuple(around.pop().shape)} from another place "
            f"than its module, such as a list, and {called(schedule)} has several versions of it: "
            "use self.weight, or take a synchronous schedule."
        )


def refuse_aside(later) -> None:
    """Refuse a backward that is not the stage's own, such as torch.autograd.grad in its forward."""
    refuse_any(
        (
            not later.is_i,
            "The backward of a stage is split, and a gradient was asked for apart from it, such as "
            "by torch.autograd.grad in a forward: choose a schedule of whole backwards.",
        )
    )


def parameters_below(tensors: Iterable[Tensor], but: str = "") -> set[Tensor]:
    """The leaves with a gradient that these were computed from, or that they are; not through the
    nodes that are named `but`."""
    nodes = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
    seen = {*nodes}
    while nodes:
        new = {node for node, _ in nodes.pop().next_functions if node and node.name() != but} - seen
        seen |= new
        nodes += new
    return {node.variable for node in seen if hasattr(node, "variable")}
