"""What every experiment on a pipeline does: predict by the simulator, run by the executor, refer to one process.

A subclass says which model is cut into stages, what a stage holds, computes and sends, and which samples it learns from.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from ..core import Cost, Scalar, Trace
from ..core.hardware import TICKS_PER_SECOND, Hardware
from ..dry_run import DryRun, dry_run
from ..explain import bubbles
from ..footprint import StageBytes, footprint
from ..plan import lower
from ..schedule import Action, Schedule, name_of
from ..simulate import simulate
from ..models import built
from ..runtime import owned
from ..techniques.split_backward import WeightGradientsLater
from .experiment import Experiment, Quantity


class Pipelined(Experiment):
    """Needs the fields `schedule`, `ranks`, `micro_batches`, `steps`; fields named like an option of the schedule are
    handed to it."""

    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory", "versions")
    ticks_per_slot: ClassVar[int] = 1000
    says_itself: ClassVar[tuple[str, ...]] = (*Experiment.says_itself, "schedule")

    @cached_property
    def order(self) -> Schedule:
        """The schedule object that the settings describe."""
        chosen = Schedule.named(self.schedule)
        options = {name: getattr(self, name) for name in chosen.options() if name in type(self).model_fields}
        return chosen(self.ranks, self.micro_batches, **options)

    @classmethod
    def idle_settings(cls, settings: dict) -> set[str]:
        """Options of other schedules than the chosen one, and where no fault strikes."""
        schedules = Schedule.all()
        used = schedules[settings["schedule"]].options() if settings["schedule"] in schedules else set()
        others = (set().union(*(each.options() for each in schedules.values())) - used) & set(cls.model_fields)
        return super().idle_settings(settings) | others

    # -- what a subclass says -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def profile(self) -> Hardware:
        """The hardware that prices the run."""

    @abstractmethod
    def stage_run(self, number: int, halved: bool = False) -> DryRun:
        """A stage's actions of one micro-batch, and two updates: see `of_stage`. `halved`: with I and W in place of B."""

    @property
    @abstractmethod
    def message_bytes(self) -> int:
        """The activation of one micro-batch between two stages, and its gradient."""

    @abstractmethod
    def durations(self) -> dict:
        """Kind -> time, in slots on the textbook profile and in seconds on any other."""

    # -- theory ---------------------------------------------------------------------------------------------

    @cached_property
    def halves(self) -> bool:
        """Whether the schedule splits any backward in two."""
        return bool(self.order.halved)

    @cached_property
    def stage_bytes(self) -> list[StageBytes]:
        """What each stage holds."""
        found = []
        for number in range(self.order.stages):
            ends = {name[1]: acted.after for name, acted in self.stage_run(number).actions.items()}
            late = self.stage_run(number, halved=True).actions["0I0"].after if self.halves else {}
            found.append(StageBytes(ends["F"].get("weights", 0), ends["B"].get("gradients", 0), ends["U"].get("optimizer", 0), ends["F"].get("activations", 0),
                                    late.get("queued", 0), late.get("gradients", 0)))
        return found

    def cost(self) -> Cost:
        changes, resident = footprint(self.order, self.stage_bytes, self.steps)
        time = {"unit": "s", "ticks_per_unit": TICKS_PER_SECOND}
        if self.profile.textbook:  # a chunk of several a rank costs a fraction of a slot
            time = {"ticks_per_unit": self.ticks_per_slot * (self.order.stages // self.ranks)}
        messages = dict.fromkeys("FBI", self.message_bytes)
        return self.misfortune.priced(Cost(self.durations(), messages, changes, resident, capacity_bytes=self.capacity_bytes,
                                           **time, **self.profile.prices(self.ranks)))

    def planned(self) -> list:
        """Each rank's operations with their weight versions; of a schedule that repeats its batch, those of one."""
        plan = lower(self.order, self.steps if self.order.asynchronous else 1)
        return [[rank, lane, ops] for (rank, lane), ops in plan.lanes.items()]

    def predict(self) -> Trace:
        return replace(self.simulated(), settings=self.told)

    def actions(self, rank: int) -> list[str]:
        return [name_of(step) for step in self.order.over(self.steps)[rank]]

    def simulated(self) -> Trace:
        return simulate(self.order, self.cost(), self.steps)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        unit = "slot" if self.profile.textbook else "s"
        return (
            Quantity("step time", unit, lambda t: t.step_time),
            Quantity("idle share", "%", lambda t: 100 * t.bubble()),
            *(Quantity(f"peak memory, rank {r}", "B", lambda t, r=r: t.peak_bytes(r)) for r in range(self.ranks)),
            Quantity("bytes sent, all ranks", "B", lambda t: sum(t.bytes_sent(r) for r in range(t.ranks))),
            Quantity("loss, last batch", "", self.last_loss, exact=False),
        )

    def last_loss(self, trace: Trace) -> float | None:
        """Mean loss of the last batch's micro-batches; None where the trace has none."""
        losses = [e.value for e in trace.where(Scalar, name="loss")][-self.micro_batches:]
        return sum(losses) / len(losses) if losses else None

    @property
    def relief(self) -> str:
        held = "micro-batches and weight versions" if self.order.asynchronous else "micro-batches"
        fewer = "Smaller micro-batches (rows)" if self.schedule == "1f1b" else f"Fewer {held} in flight (schedule 1f1b), smaller ones (rows)"
        return f"{fewer} or more ranks would need less on each device."

    def explain(self, trace: Trace) -> list[str]:
        return super().explain(trace) + ([] if trace.settings.get("unfinished") else bubbles(trace, self.order))


def of_stage(make: Callable[[], nn.Module], x: Tensor, context: tuple, loss_of: Callable | None, make_optimizer: Callable, halved: bool) -> DryRun:
    """What a stage does with one micro-batch, as Pipeline runs it on a rank: F, B (or I and W), U and U again.

    x         on meta: ids, or what the stage before sends        loss_of   output -> loss, on the last stage
    """
    later, given = WeightGradientsLater(), [x]

    def program(rank):
        stage = built(make, rank.device)
        optimizer = make_optimizer(list(stage.parameters()))
        rank.watch(lambda: owned.of((stage, optimizer)) | {"inputs": given} | ({"queued": later.tensors()} if halved else {}))
        with rank.span(Action("F", 0, 0)):
            with later if halved else nullcontext():
                y = stage(x, *context)
            y = loss_of(y) if loss_of else y
            sent, edge = y.detach(), get_gradient_edge(y)
            del y
        given.append(dy := torch.ones_like(sent))
        with rank.span(Action("I" if halved else "B", 0, 0)):
            torch.autograd.backward(edge, dy)
        if halved:
            with rank.span(Action("W", 0, 0)):
                later.run()
        for update in range(2):
            with rank.span(Action("U", 0, update)):
                optimizer.step()
    return dry_run(program)
