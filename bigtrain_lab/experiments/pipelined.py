"""What every experiment on a pipeline does: predict by the simulator, run by the executor, refer to one process.

A subclass says which model is cut into stages, what a stage holds, computes and sends, and which samples it learns from.
"""

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import nn

from ..core import Cost, Scalar, Trace
from ..core.hardware import TICKS_PER_SECOND, Hardware
from ..explain import bubbles, not_finite
from ..footprint import StageBytes, footprint
from ..plan import lower
from ..schedule import Action, Schedule, name_of
from ..simulate import simulate
from ..techniques import one_process
from ..techniques.pipeline import Pipeline
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

    @property
    @abstractmethod
    def make_optimizer(self):
        """parameters -> torch optimizer."""

    @abstractmethod
    def stage(self, number: int) -> nn.Module:
        """A stage with the weights that a run starts from."""

    @abstractmethod
    def samples(self, micro_batch: int) -> one_process.Sample:
        """Inputs, targets and context of a micro-batch, numbered through the whole run."""

    @abstractmethod
    def loss_fn(self, output, target):
        """Scalar mean loss of a micro-batch."""

    @property
    @abstractmethod
    def stage_bytes(self) -> list[StageBytes]:
        """What each stage holds."""

    @property
    @abstractmethod
    def message_bytes(self) -> int:
        """The activation of one micro-batch between two stages, and its gradient."""

    @abstractmethod
    def durations(self) -> dict:
        """Kind -> time, in slots on the textbook profile and in seconds on any other."""

    # -- theory ---------------------------------------------------------------------------------------------

    @property
    def watts(self) -> float | None:
        return self.profile.watts

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
        return super().explain(trace) + not_finite(trace) + ([] if trace.settings.get("unfinished") else bubbles(trace, self.order))

    # -- reality --------------------------------------------------------------------------------------------

    def program(self, rank) -> dict[str, np.ndarray]:
        """Each rank trains its stages; an asynchronous schedule runs all steps as one stream."""
        schedule, calls = self.order, self.steps
        if schedule.asynchronous:
            schedule, calls = schedule.lengthened(self.steps), 1
        own = [s for s in range(schedule.stages) if schedule.rank_of(s, 0) == rank.index]
        stages = [self.stage(s).to(rank.device) for s in own]

        def loss_fn(output, target):  # the run's log shows the losses as they come
            loss = self.loss_fn(output, target)
            rank.log("loss", loss.item())
            return loss

        pipeline = Pipeline(stages, schedule, loss_fn, rank.group(), optimizer=self.make_optimizer,
                            context=lambda micro_batch: self.samples(micro_batch).context)
        rank.watch(pipeline.holdings)
        losses = []
        for call in range(calls):
            numbers = range(call * schedule.micro_batches, (call + 1) * schedule.micro_batches)
            batch = [self.samples(n) for n in numbers] if {0, schedule.stages - 1} & set(own) else []
            pipeline.step([s.inputs.to(rank.device) for s in batch], [s.targets.to(rank.device) for s in batch])
            losses += pipeline.losses
        results = {name: p.detach().cpu().numpy() for stage in stages for name, p in stage.named_parameters()}
        return results | ({"loss": np.array([loss.item() for loss in losses])} if losses else {})

    def reference(self) -> dict[str, np.ndarray]:
        """One process: the mean gradient of each batch, or the published recurrence of delayed weights."""
        training = self.train_alone()
        return {"loss": np.array(training.losses), **{name: w.numpy() for name, w in training.weights.items()}}

    def stages(self) -> list[nn.Module]:
        """All stages, with the weights that a run starts from."""
        return [self.stage(s) for s in range(self.order.stages)]

    def train_alone(self) -> one_process.Training:
        """The same training in one process, with all that it tells: see techniques/one_process.py."""
        samples = [self.samples(n) for n in range(self.steps * self.micro_batches)]
        if not self.order.asynchronous:
            batches = [samples[i:i + self.micro_batches] for i in range(0, len(samples), self.micro_batches)]
            return one_process.synchronous(self.stages(), batches, self.loss_fn, self.make_optimizer)
        stream = self.order.lengthened(self.steps)
        return one_process.delayed(
            self.stages(), samples, self.loss_fn, self.make_optimizer, update_size=self.order.update_size,
            versions=lambda stage, micro_batch: tuple(stream.version(Action(kind, stage, micro_batch)) for kind in "FB"))
