"""Pipeline parallelism: each rank holds a stage of the model and runs the schedule's actions in their order.

    F   y = stage(w, x)                        x arrives from the stage before, y goes to the next
    B   (dL/dx, dL/dw) = vjp of that F         dL/dy arrives from the next stage, dL/dx goes to the one before
    I W   B in two halves: dL/dx at once, dL/dw later (split_backward.py)
    U   w' = optimizer(w, dL/dw)               dL/dw summed over the update's micro-batches, each loss divided by their number

A weight version is a value (weight_versions.py): F calls the stage as a function of its weights, so an F and its B hold
the version they used. The order itself is not here: it is data (schedules/), lowered to operations (plan.py).

Cost of a step: the schedule's makespan; messages of one activation and one gradient a micro-batch and boundary; room
for AHEAD of them, received early, beside what the schedule holds.
Sources: Huang et al. 2019, GPipe (arXiv:1811.06965); Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
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
from .split_backward import WeightGradientsLater
from .weight_versions import WeightVersions

AHEAD = 4  # receives posted before their turn, so that messages travel during the work; each holds room for one


class Pipeline:
    """The executor of a schedule on one rank.

    stage_module  this rank's stage; a list of modules, in order of stage, where a rank holds several
    loss_fn       loss_fn(output, target) -> scalar mean, called on the last stage
    group         None (torch's default group), a ProcessGroup, or a Group; its rank r is the schedule's rank r
    optimizer     parameters -> torch optimizer, used at U. Without it, U leaves the gradients in `.grad`, for an
                  optimizer of your own after `step` (synchronous schedules only).
    context       micro-batch number -> tuple of further arguments of the stage's forward, such as its noise
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
    ):
        self.group = Group.of(group)
        if self.group.size != schedule.ranks:
            raise Impossible(f"The schedule is for {schedule.ranks} ranks and the group has {self.group.size}: make them equal.")
        if schedule.asynchronous and optimizer is None:
            raise Impossible(f"{schedule.name} updates after each micro-batch: pass optimizer=, such as lambda p: torch.optim.SGD(p, 0.1).")
        self.schedule, self.loss_fn, self.context = schedule, loss_fn, context
        self.operations = lower(schedule).lanes[self.group.rank, "compute"]
        self.order = [op.step for op in self.operations if isinstance(op, Compute)]
        own = sorted({action.stage for step in self.order for action in step})
        modules = [stage_module] if isinstance(stage_module, nn.Module) else list(stage_module)
        if len(modules) != len(own):
            raise Impossible(f"Rank {self.group.rank} holds stages {own} and got {len(modules)} modules: give one a stage.")
        self.modules = dict(zip(own, modules))
        self.optimizers = {s: optimizer(list(m.parameters())) for s, m in self.modules.items()} if optimizer else {}
        self.versions = {stage: WeightVersions(module, holds_copies(schedule)) for stage, module in self.modules.items()}
        self.values: dict[Action, Tensor] = {}  # results on their way: received or not yet sent
        self.graphs: dict[tuple[int, int], tuple] = {}  # (stage, micro-batch) -> (input, weights, where its backward begins)
        halved = {(a.stage, a.micro_batch) for step in self.order for a in step if a.kind == "W"}
        self.later = {place: WeightGradientsLater() for place in halved}  # (stage, micro-batch) -> what W will do
        self.halves: dict[tuple[int, int], dict] = {}  # (stage, micro-batch) -> weights whose I is done and W is not
        self.inputs: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.losses: list[Tensor] = []
        self.steps_done = 0

    def step(self, inputs=None, targets=None) -> Tensor | None:
        """Run one batch; returns its mean loss where the last stage is, None elsewhere.

        inputs   on the first stage: a tensor that divides into the micro-batches along dim 0, or a list of them
        targets  on the last stage: likewise
        """
        self.inputs = self._micro_batches("inputs", inputs) if 0 in self.modules else []
        self.targets = self._micro_batches("targets", targets) if self.schedule.stages - 1 in self.modules else []
        self.losses = [None] * len(self.targets)  # by micro-batch, in whichever order they come
        for versions in self.versions.values():
            versions.refresh()
        self.first_version = {stage: versions.newest for stage, versions in self.versions.items()}
        for (stage, version), count in uses_of_versions(self.schedule, self.order).items():
            self.versions[stage].uses[version + self.first_version[stage]] += count
        self.wanted = (op for op in self.operations if isinstance(op, Recv))
        self.coming: deque[Handle] = deque()  # posted, in the order of their turns
        self._post_receives(AHEAD)
        run = {"F": self._forward, "B": self._backward, "I": self._backward, "W": self._weight_gradients, "U": self._update}
        for op in self.operations:
            match op:
                case Recv(src, action):
                    self.values[action] = self.coming.popleft().wait()
                    self._post_receives(1)
                case Compute(actions, version):
                    with self.group.span(tuple(map(self._numbered, actions)), version + self.first_version[actions[0].stage]):
                        for action in actions:
                            run[action.kind](action)
                case Send(dst, action):
                    self.group.isend(self.values.pop(action), dst, **self._message(action))
        self.group.finish()
        self.steps_done += 1
        return torch.stack(self.losses).mean() if self.losses else None

    def _post_receives(self, count: int) -> None:
        """Post the next receives of the order; each is taken at its turn."""
        for src, action in islice(self.wanted, count):
            self.coming.append(self.group.irecv(None, src, **self._message(action)))

    def _forward(self, action: Action) -> None:
        _, stage, micro_batch = action
        x = self.inputs[micro_batch] if stage == 0 else self.values.pop(action._replace(stage=stage - 1)).requires_grad_()
        weights = self.versions[stage][self._version(action)]
        with self.later.get(action[1:], nullcontext()):
            y = self.versions[stage].call(weights, x, *self.context(self._numbered(action).micro_batch))
        if stage == self.schedule.stages - 1:
            loss = self.loss_fn(y, self.targets[micro_batch])
            self.losses[micro_batch] = loss.detach()
            y = loss / self.schedule.update_size
        else:
            self.values[action] = y.detach()
        # The edge, not y: the output may be freed. A stage whose weights are all frozen, on ids, has no backward.
        self.graphs[action[1:]] = (x, weights, get_gradient_edge(y) if y.requires_grad else None)
        self.versions[action.stage].release(self._version(action))

    def _backward(self, action: Action) -> None:
        x, weights, y = self.graphs.pop(action[1:])
        dy = self.values.pop(self.schedule.needs(action)[-1], None)  # None: y is the loss
        self.versions[action.stage].sum_gradients_on(weights)
        if y is not None:
            torch.autograd.backward(y, dy)
        if action.kind == "I":
            self.halves[action[1:]] = weights
        if action.stage > 0:
            self.values[action] = x.grad
        self.versions[action.stage].release(self._version(action))

    def _weight_gradients(self, action: Action) -> None:
        self.versions[action.stage].sum_gradients_on(self.halves.pop(action[1:]))
        self.later[action[1:]].run()

    def _update(self, action: Action) -> None:
        self.versions[action.stage].update(self.optimizers.get(action.stage))

    def holdings(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that this rank holds now, by kind and name; what autograd saved belongs to the graphs and is not listed."""
        whose = {stage: f" of stage {stage}" if len(self.modules) > 1 else "" for stage in self.modules}
        held = owned.named({whose[stage]: module for stage, module in self.modules.items()}, self.optimizers.values())
        for stage, versions in self.versions.items():
            held["gradients"] |= {f"{name}{whose[stage]} gradient": gradient for name, gradient in versions.gradients().items()}
        return held | {
            "stashed": {name + whose[stage]: weight for stage, versions in self.versions.items() for name, weight in versions.stashed().items()},
            "queued": {f"{name} of {Action('W', *place)}": value for place, later in self.later.items() for name, value in later.tensors().items()},
            "inputs": {**{f"inputs {i}": x for i, x in enumerate(self.inputs)}, **{f"targets {i}": y for i, y in enumerate(self.targets)},
                       **{f"input of {Action('F', *place)}": x for place, (x, _, _) in self.graphs.items()},
                       **{f"result of {action}": value for action, value in self.values.items() if action.stage not in self.modules}},
        }

    # -- numbers, messages, batches -------------------------------------------------------------------------

    def _numbered(self, action: Action) -> Action:
        """The action with its micro-batch numbered on through the whole run."""
        return action._replace(micro_batch=action.micro_batch + self.steps_done * self.schedule.micro_batches)

    def _version(self, action: Action) -> int:
        """The number, in the whole run, of the weight version that the action uses."""
        return self.schedule.version(action) + self.first_version[action.stage]

    def _message(self, action: Action) -> dict:
        """How a result is announced: its name, the place in the program that it comes from, a tag of its own."""
        tag = (action.micro_batch * self.schedule.stages + action.stage) * 2 + (action.kind == "F")
        return {"name": self._numbered(action), "site": f"{action.stage}{action.kind}", "tag": tag}

    def _micro_batches(self, what: str, batch) -> list[Tensor]:
        m = self.schedule.micro_batches
        if batch is None:
            raise Impossible(f"Rank {self.group.rank} holds the stage that needs {what}: pass them to step().")
        if isinstance(batch, Tensor):
            if len(batch) % m:
                raise Impossible(f"{len(batch)} {what} do not divide into {m} micro-batches: use a multiple of {m}.")
            batch = batch.chunk(m)
        if len(batch) != m:
            raise Impossible(f"Got {len(batch)} micro-batches of {what} and the schedule has {m}: make them equal.")
        return list(batch)
