"""Pipeline parallelism: each rank holds a stage of the model and runs the schedule's actions in their order.

    F   y = stage(x)                           x arrives from the stage before, y goes to the next
    B   dL/dx, and dL/dw added to w.grad       dL/dy arrives from the next stage, dL/dx goes to the one before
    I W   B in two halves: dL/dx at once, dL/dw later (split_backward.py)
    U   w' = optimizer(w, w.grad)              gradients summed over the update's micro-batches, each loss divided by their number

Stages are called, and gradients come, as in plain torch: hooks of parameters, masters of mixed precision, recompute and
optimizers around it need not know. Only a schedule that never drains needs several versions of the weights at once
(weight_versions.py). The order itself is not here: it is data (schedules/), lowered to operations (plan.py).

Cost of a step: the schedule's makespan; messages of one activation and one gradient a micro-batch and boundary; room
for AHEAD of them, received early, beside what the schedule holds.
Sources: Huang et al. 2019, GPipe (arXiv:1811.06965); Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ..core import Impossible
from ..footprint import holds_copies, uses_of_versions
from ..plan import Compute, Recv, Send, lower
from ..runtime import owned
from ..runtime.group import Group, Handle
from ..schedule import Action, Schedule
from .guards import pipeline as guard
from .split_backward import WeightGradientsLater
from .tied import TiedWeight
from .weight_versions import WeightVersions

AHEAD = 4  # receives posted before their turn, so that messages travel during the work; each holds room for one


class Pipeline:
    """The executor of a schedule on one rank.

    stage_module  this rank's stage; a list of modules, in order of stage, where a rank holds several
    loss_fn       loss_fn(output, target) -> scalar, called on the last stage
    group         None (torch's default group), a ProcessGroup, or a Group; its rank r is the schedule's rank r
    optimizer     parameters -> torch optimizer, used at U. Without it, U leaves the gradients in `.grad`, where those of several
                  steps add up, for an optimizer of your own after `step` (synchronous schedules only)
    context       micro-batch number -> tuple of further arguments of the stage's forward, such as its noise
    scale         loss -> the tensor whose backward runs, such as MixedPrecision's `scale`
    update        stage -> None, called at U in place of `optimizer`, when all gradients of this rank are whole
    forward       (stage, x, *context) -> output, in place of stage(x, *context), such as a recompute plan
    span          (step, version) -> context manager around each step, in place of the group's span
    after         the pipeline whose run this one goes on with, as for a last batch of fewer micro-batches: numbers go on
    tied          name -> {stage: the weight's name there}, on every rank the same: a weight that several stages hold copies of
    """

    def __init__(self, stage_module: nn.Module | Sequence[nn.Module], schedule: Schedule, loss_fn: Callable[[Tensor, Tensor], Tensor], group=None, *,
                 optimizer: Callable | None = None, context: Callable[[int], tuple] = lambda micro_batch: (),
                 scale: Callable[[Tensor], Tensor] | None = None, update: Callable[[int], None] | None = None,
                 forward: Callable | None = None, span: Callable | None = None, after: "Pipeline | None" = None, tied: Mapping[str, Mapping[int, str]] = {}):
        self.group = Group.of(group)
        if self.group.size != schedule.ranks:
            raise Impossible(f"The schedule is for {schedule.ranks} ranks and the group has {self.group.size}: make them equal.")
        self.schedule, self.loss_fn, self.context, self.scale = schedule, loss_fn, context, scale or (lambda loss: loss)
        self.update, self.span = update, span or self.group.span
        self.operations = lower(schedule).lanes[self.group.rank, "compute"]
        self.order = [op.step for op in self.operations if isinstance(op, Compute)]
        own = sorted({action.stage for step in self.order for action in step})
        modules = [stage_module] if isinstance(stage_module, nn.Module) else list(stage_module)
        if len(modules) != len(own):
            raise Impossible(f"Rank {self.group.rank} holds stages {own} and got {len(modules)} modules: give one a stage.")
        self.modules = dict(zip(own, modules))
        guard.refuse(self.group.rank, self.group.size, schedule, self.order, self.modules, optimizer, scale, update, tied)
        self.optimizers = {s: optimizer(weights) for s, m in self.modules.items() if optimizer and (weights := list(m.parameters()))}
        guard.refuse_optimizers(self.optimizers.values(), modules)
        self.masters = {weight: mp.masters[weight] for mp in guard.precisions(modules) for m in modules for weight in m.parameters() if weight in mp.masters}
        self.tied = self._tied(tied)
        self.runs = {s: partial(forward, m) if forward else m for s, m in self.modules.items()}
        self.versions = {s: WeightVersions(m, holds_copies(schedule), self.runs[s]) for s, m in self.modules.items() if schedule.asynchronous}
        halved = {(a.stage, a.micro_batch) for step in self.order for a in step if a.kind == "W"}
        self.later = {place: WeightGradientsLater() for place in halved}  # (stage, micro-batch) -> what W will do
        self.values: dict[tuple, Tensor] = {}  # what F and the backward work on, received or made here, until it is used or sent
        self.graphs: dict[tuple[int, int], tuple] = {}  # (stage, micro-batch) -> (input, where its backward begins)
        self.inputs: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.weights: list[float] = []
        self.losses: list[Tensor] = []
        self.done, self.updates_done = (after.done, after.updates_done) if after else (0, 0)  # micro-batches and updates of the run

    def step(self, inputs=None, targets=None, weights=None) -> Tensor | None:
        """Run one batch; returns its loss where the last stage is, None elsewhere.

        inputs   on the first stage: a tensor that divides into the micro-batches along dim 0, or a list of them
        targets  on the last stage: likewise
        weights  on the last stage: what each micro-batch's loss is multiplied by, as `token_weighted(tokens)` gives them for
                 losses that are sums; without them the batch's loss is the mean of the micro-batches'
        """
        self._begin(inputs, targets, weights)
        run = {"F": self._forward, "B": self._backward, "I": self._backward, "W": self._weight_gradients, "U": self._update}
        for op in self.operations:
            match op:
                case Recv():
                    self.values[made(op.message)] = self.coming.popleft().wait()
                    self._post_receives(1)
                case Compute():
                    while self.unsummed and any(action.kind == "U" for action in op.step):
                        self.unsummed.pop(0).sum_gradients()
                    with self.span(tuple(map(self._numbered, op.step)), op.version + self.updates_done):
                        for action in op.step:
                            run[action.kind](action)
                case Send():
                    self.group.isend(self.values.pop(made(op.message)), op.dst, **self._message(op.message))
        self.group.finish()
        self.done += self.schedule.micro_batches
        self.updates_done += self.schedule.micro_batches // self.schedule.update_size
        if not self.losses:
            return None
        losses = torch.stack(self.losses)
        return losses.mean() if weights is None else (losses * losses.new_tensor(self.weights)).sum()

    def _forward(self, action: Action) -> None:
        _, stage, micro_batch = action
        x = self.inputs[micro_batch] if stage == 0 else self.values.pop(("F", stage - 1, micro_batch)).requires_grad_()
        with self.later.get(action[1:], nullcontext()):
            y = self._stage(action)(x, *self.context(self._numbered(action).micro_batch))
        if stage == self.schedule.stages - 1:
            y = self._loss(y, action)
        else:
            guard.refuse_output(action, y, self.modules[stage])
            self.values[made(action)] = y.detach()
        # The edge, not y: the output may be freed. A first stage whose weights are all frozen has no backward.
        self.graphs[action[1:]] = (x, get_gradient_edge(y) if y.requires_grad else None)
        if action[1:] in self.later and self._numbered(action).micro_batch == 0:
            guard.refuse_used_twice(action, y, self.later[action[1:]].postponed)
        self._release(action)

    def _loss(self, y: Tensor, action: Action) -> Tensor:
        """What the backward of the last stage begins with."""
        loss = self.loss_fn(y, self.targets[action.micro_batch])
        guard.refuse_loss(action, loss)
        self.losses[action.micro_batch] = loss.detach()
        return self.scale(loss * self.weights[action.micro_batch] if self.weights else loss / self.schedule.update_size)

    def _backward(self, action: Action) -> None:
        _, stage, micro_batch = action
        x, y = self.graphs.pop(action[1:])
        dy = self.values.pop(("B", stage + 1, micro_batch), None)  # None: y is the loss
        if y is not None:
            torch.autograd.backward(y, dy)
        if stage > 0:
            self.values[made(action)] = guard.gradient(action, x)
        self._release(action)

    def _weight_gradients(self, action: Action) -> None:
        self.later[action[1:]].run()

    def _update(self, action: Action) -> None:
        if versions := self.versions.get(action.stage):
            versions.update(self.optimizers[action.stage])
        elif optimizer := self.optimizers.get(action.stage):
            optimizer.step()
            optimizer.zero_grad()
        elif self.update:
            self.update(action.stage)

    def holdings(self, *optimizers) -> dict[str, dict[str, Tensor]]:
        """The tensors that this rank holds now, by kind and name; what autograd saved belongs to the graphs and is not listed.
        `optimizers`: those of the caller's own."""
        whose = {stage: f" of stage {stage}" if len(self.modules) > 1 else "" for stage in self.modules}
        held = owned.named({whose[stage]: module for stage, module in self.modules.items()}, (*self.optimizers.values(), *optimizers), self.masters)
        return held | {
            "stashed": {name + whose[stage]: weight for stage, versions in self.versions.items() for name, weight in versions.stashed().items()},
            "queued": {f"{name} of {Action('W', *place)}": value for place, later in self.later.items() for name, value in later.tensors().items()},
            "inputs": {**{f"loss {i}": loss for i, loss in enumerate(self.losses) if loss is not None},
                       **{f"inputs {i}": x for i, x in enumerate(self.inputs)}, **{f"targets {i}": y for i, y in enumerate(self.targets)},
                       **{f"input of {Action('F', *place)}": x for place, (x, _) in self.graphs.items()},
                       **{f"result of {Action(*key)}": value for key, value in self.values.items() if key[1] not in self.modules}},
        }

    # -- batches, versions, ties, messages --------------------------------------------------------------------

    def _begin(self, inputs, targets, weights) -> None:
        """What belongs to one batch: its micro-batches, the receives to come, how often each version will be used."""
        batch, last = partial(guard.micro_batches, self.schedule, self.group.rank), self.schedule.stages - 1 in self.modules
        self.inputs = batch("inputs", inputs) if 0 in self.modules else []
        self.targets = batch("targets", targets) if last else []
        self.weights = batch("weights", weights) if last and weights is not None else []
        self.losses = [None] * len(self.targets)  # by micro-batch, in whichever order they come
        guard.refuse_late(self.steps_done, self.optimizers.values(), self.modules.values())
        self.scale(torch.zeros(()))  # so that the scaler of every rank knows that its gradients come scaled
        for versions in self.versions.values():
            versions.refresh()
        if self.versions:
            for (stage, version), count in uses_of_versions(self.schedule, self.order).items():
                self.versions[stage].uses[version + self.updates_done] += count
        self.unsummed = list(self.tied)  # until this rank's first update of the batch
        for tie in self.tied:
            tie.begin()
        self.wanted = (op for op in self.operations if isinstance(op, Recv))
        self.coming: deque[Handle] = deque()  # posted, in the order of their turns
        self._post_receives(AHEAD)

    def _post_receives(self, count: int) -> None:
        """Post the next receives of the order; each is taken at its turn."""
        for op in islice(self.wanted, count):
            self.coming.append(self.group.irecv(None, op.src, **self._message(op.message)))

    def _stage(self, action: Action) -> Callable:
        """The stage of an action, on the weights that it must use."""
        if versions := self.versions.get(action.stage):
            return partial(versions.call, versions[self.schedule.version(action) + self.updates_done])
        return self.runs[action.stage]

    def _release(self, action: Action) -> None:
        if versions := self.versions.get(action.stage):
            versions.release(self.schedule.version(action) + self.updates_done)

    def _tied(self, named: Mapping[str, Mapping[int, str]]) -> list[TiedWeight]:
        """Those of which this rank holds a copy; of a half weight the copy that learns is its master."""
        ties = []
        for name, places in named.items():
            own = {stage: self.modules[stage].get_parameter(weight) for stage, weight in places.items() if stage in self.modules}
            if own:
                ranks = {stage: self.schedule.rank_of(stage, 0) for stage in places}
                ties.append(TiedWeight(self.group, name, ranks, {stage: self.masters.get(weight, weight) for stage, weight in own.items()}))
        return ties

    def _numbered(self, action: Action) -> Action:
        """The action with its micro-batch numbered on through the whole run."""
        return action._replace(micro_batch=action.micro_batch + self.done)

    def _message(self, action: Action) -> dict:
        """How a result is announced: its name, the place in the program that it comes from, a tag of its own."""
        tag = (action.micro_batch * self.schedule.stages + action.stage) * 2 + (action.kind == "F")
        return {"name": self._numbered(action), "site": f"{action.stage}{action.kind}", "tag": tag}


def made(action: Action) -> tuple[str, int, int]:
    """What an action makes for its neighbour: a stage's output, or the gradient of its input, whole backward or half."""
    return ("F" if action.kind == "F" else "B", action.stage, action.micro_batch)
