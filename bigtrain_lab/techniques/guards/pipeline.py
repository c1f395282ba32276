"""What cannot run in a pipeline, or would train wrongly in silence: refused in one sentence when the parts are put together.

`refuse` sees what the user gave, before anything is built; the rest looks at what a step is given and what a stage returns.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ...core import Impossible
from ...schedule import Action, Schedule
from ..mixed_precision import DynamicLossScaler, MixedPrecision


def refuse(rank: int, size: int, schedule: Schedule, order: list, modules: Mapping[int, nn.Module], optimizer, scale, update,
           tied) -> None:
    """`order`: this rank's steps; `modules`: its stages; the rest as it was given to Pipeline."""
    if schedule.asynchronous and optimizer is None:
        raise Impossible(f"{schedule.name} updates after each micro-batch: pass optimizer=, such as lambda p: torch.optim.SGD(p, 0.1).")
    if update and (schedule.asynchronous or optimizer):
        raise Impossible(f"update= is for a synchronous schedule without optimizer=, and this is {'with it' if optimizer else schedule.name}: "
                         f"{'give one of the two' if optimizer else 'give optimizer='}.")
    if update and (early := backward_after_update(order, range(schedule.stages))):
        raise Impossible(f"{schedule.name} runs {early} on rank {rank} after an update, and update= needs all gradients of the rank: put its updates "
                         "at the end.")
    for stage, module in modules.items():
        if not isinstance(module, nn.Module):
            raise Impossible(f"Stage {stage} is a {type(module).__name__}: give an nn.Module, or a list of them in order of stage.")
        devices = sorted({str(tensor.device) for tensor in (*module.parameters(), *module.buffers())})
        if len(devices) > 1:
            raise Impossible(f"Stage {stage} on rank {rank} has weights on {' and '.join(devices)}: move the whole stage to one device.")
        if any(isinstance(part, nn.parallel.DistributedDataParallel) for part in module.modules()):
            raise Impossible(f"Stage {stage} is wrapped in torch's DistributedDataParallel, which reduces at every backward: give the module "
                             "itself, and reduce its gradients after step().")
        ranks = {schedule.rank_of(stage, micro_batch) for micro_batch in range(schedule.micro_batches)}
        if len(ranks) > 1:
            raise Impossible(f"{schedule.name} runs stage {stage} on ranks {sorted(ranks)}, whose weights would part: simulate it, or keep a stage on one rank.")
    if optimizer or schedule.asynchronous:
        refuse_shared(rank, modules)
    refuse_precision(size, schedule, modules, optimizer, scale)
    refuse_ties(rank, schedule, order, modules, tied)


def refuse_shared(rank: int, modules: Mapping[int, nn.Module]) -> None:
    """A parameter in two stages of one rank would be updated twice."""
    owners: dict[nn.Parameter, int] = {}
    for stage, module in modules.items():
        for name, parameter in module.named_parameters():
            if owners.setdefault(parameter, stage) != stage:
                raise Impossible(f"Rank {rank} has {name} in stages {owners[parameter]} and {stage}, which would update it twice: leave optimizer= out "
                                 "and step once after step(), by a synchronous schedule.")


def refuse_precision(size: int, schedule: Schedule, modules: Mapping[int, nn.Module], optimizer, scale) -> None:
    prepared = precisions(modules.values())
    scaler = getattr(scale, "__self__", None)
    scaler = scaler.scaler if isinstance(scaler, MixedPrecision) else scaler
    if len(prepared) > 1:
        raise Impossible("The rank's stages were prepared by several MixedPrecisions: prepare all in one, as nn.ModuleList(stages).")
    if schedule.asynchronous and (scale or any(mp.masters for mp in prepared)):
        raise Impossible(f"{schedule.name} updates while other micro-batches run, when no loss scale and no master weight may change: take a "
                         "synchronous schedule, or train in full precision.")
    if optimizer and scale:
        raise Impossible("optimizer= would step on scaled gradients: leave it out, and call mp.step(optimizer) and mp.update() after step().")
    if not scale and any(mp.scaler for mp in prepared):
        raise Impossible(f"The stages were prepared at {next(iter(prepared)).level.name}, whose loss is scaled: pass scale=mp.scale.")
    if size > 1 and (isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled()
                     or isinstance(scaler, DynamicLossScaler) and scaler.is_enabled() and scaler.group is None):
        raise Impossible(f"{size} ranks would skip steps each for itself: let them agree by MixedPrecision(level, group=group), or "
                         "DynamicLossScaler(group=group).")


def refuse_optimizers(optimizers: Iterable, modules: Iterable[nn.Module]) -> None:
    """One that holds half weights would never see their gradients, which go to the masters."""
    masters = {weight for mp in precisions(modules) for weight in mp.masters}
    for each in optimizers:
        if isinstance(each, torch.optim.LBFGS):
            raise Impossible("LBFGS needs the whole loss again inside its step: take an optimizer without a closure, such as Adam.")
        if any(parameter in masters for group in each.param_groups for parameter in group["params"]):
            raise Impossible("optimizer= would hold half weights, whose gradients are their masters': leave it out, build one from mp.parameters(), "
                             "and call mp.step(optimizer) after step().")


def precisions(modules: Iterable[nn.Module]) -> set[MixedPrecision]:
    """Those by which any part of the modules was prepared."""
    found = (getattr(part, "_prepared_by", None) for module in modules for part in module.modules())
    return {mp for mp in found if isinstance(mp, MixedPrecision)}


def refuse_ties(rank: int, schedule: Schedule, order: list, modules: Mapping[int, nn.Module], tied: Mapping[str, Mapping[int, str]]) -> None:
    if tied and schedule.asynchronous:
        raise Impossible(f"{schedule.name} updates its stages at different times, so copies of a tied weight would part: take a synchronous schedule.")
    for tie, names in tied.items():
        if strange := [stage for stage in names if not 0 <= stage < schedule.stages]:
            raise Impossible(f"Tied weight {tie!r} names stage {strange[0]}, and the stages are 0 to {schedule.stages - 1}.")
        own = {stage: dict(modules[stage].named_parameters()) for stage in names if stage in modules}
        for stage, parameters in own.items():
            if names[stage] not in parameters:
                raise Impossible(f"Tied weight {tie!r} is called {names[stage]!r} on stage {stage}, which has no such parameter: give its name there.")
        if len({parameters[names[stage]] for stage, parameters in own.items()}) < len(own):
            raise Impossible(f"Stages {sorted(own)} of rank {rank} share the parameter of tied weight {tie!r}, so its gradients add up there: name one of them.")
        if own and backward_after_update(order, own):
            raise Impossible(f"{schedule.name} updates on rank {rank} before the last backward of tied weight {tie!r}: put its updates at the end.")


def backward_after_update(order: list, stages) -> Action | None:
    """The first backward of these stages that comes after an update of the rank in a batch; None where there is none."""
    actions = [action for step in order for action in step]
    updated = next((at for at, action in enumerate(actions) if action.kind == "U"), len(actions))
    return next((action for action in actions[updated:] if action.kind in "BIW" and action.stage in stages), None)


# -- at a step ----------------------------------------------------------------------------------------------------------


def micro_batches(schedule: Schedule, rank: int, what: str, batch) -> list[Tensor]:
    """The batch as the schedule's micro-batches."""
    m = schedule.micro_batches
    if batch is None:
        raise Impossible(f"Rank {rank} holds the stage that needs {what}: pass them to step().")
    if isinstance(batch, Tensor) and what != "weights":
        if len(batch) % m:
            raise Impossible(f"{len(batch)} {what} do not divide into {m} micro-batches: use a multiple of {m}.")
        batch = batch.chunk(m)
    if len(batch) != m:
        raise Impossible(f"Got {len(batch)} micro-batches of {what} and the schedule has {m}: make them equal.")
    return list(batch)


def refuse_late(steps_done: int, optimizers: Iterable, modules: Iterable[nn.Module]) -> None:
    """What the caller may have done since the pipeline was made."""
    if not torch.is_grad_enabled():
        raise Impossible("step() was called where gradients are off: call it outside torch.no_grad() and torch.inference_mode().")
    if not steps_done:
        refuse_optimizers(optimizers, modules)


def refuse_output(action: Action, y, module: nn.Module) -> None:
    """What comes out of a stage must carry the gradient back; a first stage may be frozen."""
    if not isinstance(y, Tensor):
        raise Impossible(f"Stage {action.stage} returned a {type(y).__name__}: between stages travels one tensor.")
    if not y.requires_grad and (action.stage or any(weight.requires_grad for weight in module.parameters())):
        raise Impossible(f"The output of stage {action.stage} has no graph (detached, or made under no_grad), so no gradient can go back: return it "
                         "with its graph.")


def refuse_loss(action: Action, loss) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = (f"a {type(loss).__name__}" if not isinstance(loss, Tensor) else f"a tensor of shape {tuple(loss.shape)}" if loss.numel() != 1
                else "a tensor without a graph (detached, or of weights that are all frozen)")
        raise Impossible(f"loss_fn gave {what} for micro-batch {action.micro_batch}: let it return a scalar tensor with its graph.")


def gradient(action: Action, x: Tensor) -> Tensor:
    """dL/dx of a stage's input, for the stage before."""
    if x.grad is None:
        raise Impossible(f"The output of stage {action.stage} does not depend on its input, so no gradient can go back: let it use its input.")
    return x.grad


def refuse_used_twice(action: Action, y: Tensor, postponed: Iterable[Tensor]) -> None:
    """A weight whose gradient comes partly in I and partly in W would have its hooks run on parts of it."""
    now, later = parameters_below([y]), parameters_below(postponed)
    if both := now & later:
        raise Impossible(f"A weight of shape {tuple(both.pop().shape)} of stage {action.stage} is used by a Linear or an Embedding and elsewhere too, so "
                         "that halves of its gradient would come in I and in W: take a schedule that does not split the backward.")


def parameters_below(tensors: Iterable[Tensor]) -> set[Tensor]:
    """The leaves with a gradient that these were computed from."""
    tensors = [tensor for tensor in tensors if tensor.requires_grad]
    found, nodes = {tensor for tensor in tensors if tensor.is_leaf}, [tensor.grad_fn for tensor in tensors if not tensor.is_leaf]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            found.add(node.variable)
        new = {following for following, _ in node.next_functions if following} - seen
        seen |= new
        nodes += new
    return found
