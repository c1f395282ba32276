"""Pipeline parallelism: each rank has a stage of the model and runs the schedule's actions.

    F    y = stage(x)                       x comes from the stage before, y goes to the next
    B    dL/dx, and w.grad += dL/dw         dL/dy comes from the next stage, dL/dx goes back
    I W  B in two halves: dL/dx at once, dL/dw later (split_backward.py)
    U    w' = optimizer(w, w.grad)          w.grad is the sum of dL/dw / update_size

Stages are called, and gradients accumulate, as in plain torch. So hooks of parameters, masters of
mixed precision, recompute and optimizers work as without a pipeline. Only a schedule that never
drains needs several versions of the weights at once (weight_versions.py). The order is data
(order/schedules/), lowered to operations (order/plan.py).

Time of a step: the schedule's makespan. Memory: the schedule's micro-batches in flight, and AHEAD
received messages. Each micro-batch sends one activation and one gradient per boundary.
Sources: Huang et al. 2019, GPipe (arXiv:1811.06965); Narayanan et al. 2019, PipeDream (SOSP 2019),
section 3.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ..order.plan import Compute, Recv, Send, lower
from ..order.schedule import Action, Schedule, Step
from ..runtime.memory import owned
from ..runtime.talk.group import Group, Handle
from .guards import pipeline as guard, refuse_loss
from .prepared_model import masters_of
from .split_backward import WeightGradientsLater
from .tied import TiedWeight
from .weight_versions import WeightVersions

AHEAD = 4  # receives posted before their turn, each with a buffer: messages travel during compute


class Pipeline:
    """Executor of a schedule on one rank.

    stage_module  this rank's stage; if it has several, a list of modules in order of stage
    loss_fn       loss_fn(output, target) -> scalar, called on the last stage
    group         None (torch's default group), a ProcessGroup, or a Group: its rank r is the
                  schedule's rank r
    optimizer     parameters -> torch optimizer of a stage, used at U. Without it, gradients of
                  several steps add up in `.grad`, for an optimizer of your own after `step`
                  (synchronous schedules only). Clip by `clip_grad_norm(parameters, c, group)` in
                  between: torch's function would clip each rank by the norm of its stages
    context       micro-batch number -> tuple of further arguments of the stage's forward
    scale         loss -> the tensor whose backward runs, such as MixedPrecision's `scale`
    update        stage -> None, called at U in place of `optimizer`, when the stage's gradients are
                  complete (synchronous schedules only)
    whole         called once a batch, before the first U. This rank's gradients are complete then,
                  but those of tied weights are not yet summed over their stages
    forward       (stage's module, x, *context) -> output, in place of a plain call, such as a
                  recompute plan
    span          (step, version) -> context manager around it, in place of the group's span
    after         an earlier Pipeline of the same stages. Its optimizers, and its numbers of
                  micro-batches and updates, go on, for example for a smaller last batch
    tied          name -> {stage: the weight's name there}, the same on every rank: a weight of
                  which several stages hold copies
    """

    def __init__(
        self,
        stage_module: nn.Module | Sequence[nn.Module],
        schedule: Schedule,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        group=None,
        *,
        optimizer: Callable | None = None,
        context: Callable[[int], tuple] = lambda micro_batch: (),
        scale: Callable[[Tensor], Tensor] | None = None,
        update: Callable[[int], None] | None = None,
        whole: Callable[[], None] | None = None,
        forward: Callable | None = None,
        span: Callable | None = None,
        after: "Pipeline | None" = None,
        tied: Mapping[str, Mapping[int, str]] = {},
    ):
        self.group = group = Group.of(group).anew()
        guard.refuse_size(group, schedule)
        self.operations = lower(schedule).lanes[group.rank, "compute"]
        self.order = [op.step for op in self.operations if isinstance(op, Compute)]
        self.modules = guard.stages_of(group.rank, self.order, stage_module)
        guard.refuse(group, schedule, self.order, self.modules, optimizer, scale, tied, update)
        self.schedule, self.loss_fn, self.context = schedule, loss_fn, context
        self.scale, self.update = scale or (lambda loss: loss), update
        self.whole = whole or (lambda: None)
        self.span = span or group.span
        self.done = after.done if after else 0  # micro-batches, and updates, of the run so far
        self.updates_done = after.updates_done if after else 0
        kept = after.optimizers if after and optimizer else {}  # with their moments
        self.optimizers = kept or {
            stage: optimizer(weights)
            for stage, module in self.modules.items()
            if optimizer and (weights := list(module.parameters()))
        }
        guard.refuse_optimizers(self.optimizers, self.modules, schedule, loss_fn)
        self.masters = masters_of(self.modules.values())
        self.tied = self._copies(tied)
        known = self.modules if self.optimizers or self.tied else {}
        self.known = {stage: [*module.parameters()] for stage, module in known.items()}
        self.calls = {
            stage: partial(forward, module) if forward else module
            for stage, module in self.modules.items()
        }
        self.versions = {
            stage: WeightVersions(self.modules[stage], schedule.stashing, self.updates_done)
            for stage in self.optimizers
            if schedule.asynchronous
        }
        self.unseen = {*self.versions}  # stages of which no forward had an older version yet
        self.later = {
            action[1:]: WeightGradientsLater()  # (stage, micro-batch) -> what W will do
            for step in self.order
            for action in step
            if action.kind == "W"
        }
        # result_key -> tensor: for the actions of this operation, and for later ones when it ends
        self.results_of_this_op: dict[tuple, Tensor] = {}
        self.results: dict[tuple, Tensor] = {}  # received or our own, until used or sent
        self.graphs: dict[tuple, tuple] = {}  # (stage, micro-batch) -> (input, where B begins)
        self.inputs: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.weights: list[float] = []
        self.losses: list[Tensor] = []

    def step(self, inputs=None, targets=None, weights=None) -> Tensor | None:
        """Run one batch; return its loss on the rank of the last stage, None elsewhere. A batch
        here is one call. `op.step` is a tuple of actions run together.

        inputs   on the first stage: a tensor that is split into micro-batches along dim 0, or a
                 list of them
        targets  on the last stage: likewise
        weights  on the last stage: what each micro-batch's loss is multiplied by, such as
                 `token_weighted(tokens)` for losses that are sums. Without them: 1/update_size,
                 which is 1/micro-batches in a synchronous schedule. A mean that leaves labels out,
                 by ignore_index, then weighs a label by how many its micro-batch has, and nothing
                 refuses it
        """
        self._begin(inputs, targets, weights)
        run = {
            "F": self._forward,
            "B": self._backward,
            "I": self._backward,
            "W": self._weight_gradients,
            "U": self._update,
        }
        for op in self.operations:
            match op:
                case Recv():
                    self.results[result_key(op.message)] = self._receive()
                case Compute():
                    self._make_whole(op.step)
                    with self._span(op):
                        for action in op.step:
                            run[action.kind](action)
                    self.results |= self.results_of_this_op
                    self.results_of_this_op = {}
                case Send():
                    self.group.isend(
                        self.results.pop(result_key(op.message)),
                        op.dst,
                        **self._message(op.message),
                    )
        self.group.finish()
        self.done += self.schedule.micro_batches
        self.updates_done += self.schedule.micro_batches // self.schedule.update_size
        return self._batch_loss()

    def _forward(self, action: Action) -> None:
        _, stage, micro_batch = action
        if stage == 0:
            x = given = self.inputs[micro_batch]
        else:
            x = self._take("F", stage - 1, micro_batch).requires_grad_()
            given = Entrance.apply(x)
        with self._weights(action), self.later.get((stage, micro_batch), nullcontext()):
            y = self.calls[stage](given, *self.context(self._numbered(action).micro_batch))
        if is_last := stage == self.schedule.stages - 1:
            y = self._loss(y, micro_batch)
        # The check of weights that W postpones walks the graph: make it in the first batch only.
        guard.refuse_output(
            action, y, self.modules[stage], {} if self.done else self.later, is_last
        )
        if stage in self.unseen and self._version(action) < self.versions[stage].newest:
            self.unseen.remove(stage)
            guard.refuse_around(self.schedule, stage, y, self.modules[stage])
        if not is_last:
            self.results_of_this_op[result_key(action)] = y.detach()
        # Keep the gradient edge instead of y, so that y's memory can be freed. A first stage that
        # is frozen has no backward.
        self.graphs[stage, micro_batch] = x, (get_gradient_edge(y) if y.requires_grad else None)

    def _backward(self, action: Action) -> None:
        """Run B or I. Before I, the forward ran under a mode of `self.later`. That makes this
        backward queue the weights' gradients of Linears and Embeddings, for W."""
        _, stage, micro_batch = action
        x, edge = self.graphs.pop((stage, micro_batch))
        dy = self._take("B", stage + 1, micro_batch)  # None: y is the loss
        with self._weights(action):
            if edge is not None:
                self.later.get((stage, micro_batch), torch.autograd).backward(edge, dy)
        if stage > 0:
            self.results_of_this_op[result_key(action)] = guard.gradient(action, x)

    def _take(self, *key) -> Tensor | None:
        own = self.results_of_this_op
        return (own if key in own else self.results).pop(key, None)

    def _weight_gradients(self, action: Action) -> None:
        self.later[action[1:]].run()

    def _update(self, action: Action) -> None:
        optimizer = self.optimizers.get(action.stage)
        if versions := self.versions.get(action.stage):
            versions.update(optimizer)
        elif optimizer:
            optimizer.step()
            optimizer.zero_grad()
        elif self.update:
            self.update(action.stage)

    def _loss(self, y: Tensor, micro_batch: int) -> Tensor:
        loss = self.loss_fn(y, self.targets[micro_batch])
        refuse_loss("loss_fn", loss, f"{micro_batch}")
        self.losses[micro_batch] = loss.detach()
        return self.scale(
            loss * self.weights[micro_batch] if self.weights else loss / self.schedule.update_size
        )

    # -- one batch -------------------------------------------------------------------------------

    def _begin(self, inputs, targets, weights) -> None:
        """Take the micro-batches, count each weight version's uses, post the first receives."""
        guard.refuse_step(self.known, self.modules, self.optimizers.values())
        cut = partial(guard.micro_batches, self.schedule, self.group.rank)
        last = self.schedule.stages - 1 in self.modules
        self.inputs = cut("inputs", inputs) if 0 in self.modules else []
        self.targets = cut("targets", targets) if last else []
        self.weights = cut("weights", weights) if last and weights is not None else []
        self.losses = [None] * len(self.targets)  # by micro-batch, in whichever order they come
        # Only the last stage scales a loss. Call it here so that every rank's scaler sets `scaled`.
        self.scale(torch.zeros(()))
        for versions in self.versions.values():
            versions.refresh()
        if self.versions:
            for (stage, version), uses in self.schedule.uses(self.order).items():
                if stage in self.versions:
                    self.versions[stage].uses[version + self.updates_done] += uses
        for tie in self.tied:
            tie.begin()
        self.unsummed = True
        self.wanted = (op for op in self.operations if isinstance(op, Recv))
        self.coming: deque[Handle] = deque()  # posted, in the order of their turns
        self._post_receives(AHEAD)

    def _batch_loss(self) -> Tensor | None:
        if not self.losses:
            return None
        losses = torch.stack(self.losses)
        return (losses * losses.new_tensor(self.weights)).sum() if self.weights else losses.mean()

    def _post_receives(self, count: int) -> None:
        """Post the next receives of the order; each is taken at its turn."""
        self.coming.extend(
            self.group.irecv(None, op.src, **self._message(op.message))
            for op in islice(self.wanted, count)
        )

    def _receive(self) -> Tensor:
        received = self.coming.popleft().wait()
        self._post_receives(1)
        return received

    # -- weights ---------------------------------------------------------------------------------

    @contextmanager
    def _weights(self, action: Action):
        """Around one use of the weight version that the action uses: the stage has it."""
        if not (versions := self.versions.get(action.stage)):
            yield
            return
        version = self._version(action)
        with versions.placed(versions[version]):
            yield
        versions.release(version)

    def _version(self, action: Action) -> int:
        return self.schedule.version(action) + self.updates_done

    def _copies(self, tied: Mapping[str, Mapping[int, str]]) -> list[TiedWeight]:
        """Return the tied weights that this rank has a copy of; of a half weight, its master."""
        ties = []
        for name, places in tied.items():
            own = {
                stage: self.modules[stage].get_parameter(weight)
                for stage, weight in places.items()
                if stage in self.modules
            }
            own = {stage: self.masters.get(weight, weight) for stage, weight in own.items()}
            ranks = {stage: self.schedule.rank_of(stage, 0) for stage in places}
            ties += [TiedWeight(self.group, name, ranks, own)] if own else []
        return ties

    def _make_whole(self, step: Step) -> None:
        """Call `whole` and sum tied gradients, before the first update of a batch."""
        if self.unsummed and any(action.kind == "U" for action in step):
            self.whole()
            for tie in self.tied:
                tie.sum_gradients()
            self.unsummed = False

    # -- names -----------------------------------------------------------------------------------

    def holdings(self, *optimizers) -> dict[str, dict[str, Tensor]]:
        """Return this rank's tensors now, by kind and name, without those that autograd saved.
        `optimizers`: the caller's own."""
        of = {stage: f" of stage {stage}" * (len(self.modules) > 1) for stage in self.modules}
        held = owned.named(
            {of[stage]: module for stage, module in self.modules.items()},
            (*self.optimizers.values(), *optimizers),
            self.masters,
        )
        held["stashed"] = {
            name + of[stage]: weight
            for stage, versions in self.versions.items()
            for name, weight in versions.stashed().items()
        }
        held["queued"] = {
            f"{name} of {Action('W', *place)}": value
            for place, later in self.later.items()
            for name, value in later.tensors().items()
        }
        return held | {
            "inputs": {
                **{f"loss {i}": x for i, x in enumerate(self.losses) if x is not None},
                **{f"inputs {i}": x for i, x in enumerate(self.inputs)},
                **{f"targets {i}": y for i, y in enumerate(self.targets)},
                **{f"input of {Action('F', *place)}": x for place, (x, _) in self.graphs.items()},
                **{f"result of {Action(*key)}": value for key, value in self.results.items()},
            }
        }

    def actions(self) -> list[Action]:
        """Return this rank's actions of the next batch, numbered through the whole run."""
        return [self._numbered(action) for step in self.order for action in step]

    def _span(self, op: Compute):
        return self.span(tuple(map(self._numbered, op.step)), op.version + self.updates_done)

    def _numbered(self, action: Action) -> Action:
        """Number the action's micro-batch on through the whole run."""
        return action._replace(micro_batch=action.micro_batch + self.done)

    def _message(self, action: Action) -> dict:
        """Return a result's name, its place in the program, and a tag of its own."""
        tag = (action.micro_batch * self.schedule.stages + action.stage) * 2 + (action.kind == "F")
        return {"name": self._numbered(action), "site": f"{action.stage}{action.kind}", "tag": tag}


class Entrance(torch.autograd.Function):
    """Identity at a stage's input: no leaf, so that the stage may change it in place."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx, dx: Tensor) -> Tensor:
        return dx


def result_key(action: Action) -> tuple[str, int, int]:
    """Name an action's result: a stage's output, or its input's gradient, by B or by I alike."""
    return ("F" if action.kind == "F" else "B", action.stage, action.micro_batch)
