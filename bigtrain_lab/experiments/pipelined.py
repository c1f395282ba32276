"""What every experiment on a pipeline does: predict by the simulator, run by the executor, refer to
one process.

A subclass says which model is cut into stages, what a stage holds, computes and sends, and which
samples it learns from.
"""

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from .. import techniques, train
from ..core import Trace, readings
from ..order import Action, Plan, Schedule, bubbles, lower, name_of, samples
from .experiment import Quantity
from .on_hardware import OnHardware


class StageBytes(NamedTuple):
    """What a stage holds: weights, their gradients, optimizer state, and activations that autograd
    keeps of one micro-batch."""

    weights: int
    gradients: int
    optimizer: int
    activations: int


class Pipelined(OnHardware):
    """Needs the fields `schedule`, `ranks`, `micro_batches`, `steps`; fields named like an option
    of the schedule are handed to it."""

    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory", "versions", "rivals")
    rivals_by: ClassVar[str] = "schedule"
    answers: ClassVar[tuple[str, ...]] = ("step time", "peak memory, fullest rank")
    ledger: ClassVar[bool] = True
    ticks_of_chunk: ClassVar[int] = 1000

    @cached_property
    def order(self) -> Schedule:
        """The schedule object that the settings describe."""
        chosen = Schedule.named(self.schedule)
        return chosen(
            self.ranks,
            self.micro_batches,
            **{
                name: getattr(self, name)
                for name in chosen.options()
                if name in type(self).model_fields
            },
        )

    @classmethod
    def idle_settings(cls, settings: dict) -> set[str]:
        """Options of other schedules than the chosen one, where there is a choice."""
        schedules = Schedule.all() if "schedule" in settings else {}
        options = {name: each.options() & {*cls.model_fields} for name, each in schedules.items()}
        others = set().union(*options.values()) - options.get(settings.get("schedule"), set())
        return super().idle_settings(settings) | others

    # -- what a subclass says ----------------------------------------------------------------------

    @abstractmethod
    def stage_run(self, number: int, rehearsal: "train.Rehearsal") -> "train.Part":
        """What each action of the rehearsal does on a stage."""

    def place(self, rank: int) -> int:
        """The schedule's rank that a rank of the run is."""
        return rank % self.order.ranks

    def time(self, work: train.Work) -> float:
        """Seconds of this work; on the textbook profile its FLOPs, which share a slot."""
        return work.flops if self.profile.textbook else work.seconds(self.profile, self.format)

    @property
    def format(self) -> str:
        """Of the products."""
        return "bfloat16" if getattr(self, "precision", "none") == "bf16" else self.dtype

    # -- theory ------------------------------------------------------------------------------------

    @property
    def stage_bytes(self) -> list[StageBytes]:
        """What each stage holds."""
        found = []
        for number in range(self.order.stages):
            acted = self.stage_run(number, train.WHOLE).acted
            forward, backward, update = (
                train.difference(acted[like].before, acted[like].after)
                for like in (train.Like("F", "again"), train.Like("B"), train.Like("U"))
            )
            found.append(
                StageBytes(
                    acted[train.Like("F")].before["weights"],
                    backward.get("gradients", 0),
                    update.get("optimizer", 0),
                    forward.get("activations", 0),
                )
            )
        return found

    @cached_property
    def memory(self) -> train.Holdings:
        needed = train.rehearsals(
            self.order, self.steps if self.order.asynchronous else min(self.steps, 2)
        )
        parts = [
            [self.stage_run(stage, one) for one in several] for stage, several in enumerate(needed)
        ]
        parts = [first.joined(*others) for first, *others in parts]
        return train.Rehearsed(self.order, self.steps, parts, self.place)

    tied_copies: ClassVar[dict[str, dict[int, str]]] = {}  # or a property: of tied weights

    @property
    def ticks_per_slot(self) -> int:
        """Each of a rank's chunks costs a fraction of a slot."""
        return self.ticks_of_chunk * self.order.stages // self.order.ranks

    @property
    def slot(self) -> int:
        """A slot is the work of a stage, however many there are."""
        return self.order.ranks

    slots: ClassVar[dict] = {"F": 1, "B": 2, "I": 1, "W": 1, "U": 0}  # all stages are equal

    def priced(self) -> dict[str, list]:
        """Kind -> the time of each stage."""
        return {
            kind: [self.seconds(kind, stage) for stage in range(self.order.stages)]
            for kind in ("FBIWU" if self.order.halved else "FBU")
        }

    def seconds(self, kind: str, stage: int) -> float:
        """Of a later action of a stage; of a backward that finds no gradients."""
        return self.stage_run(stage, train.HALVES if kind in "IW" else train.WHOLE).seconds(
            kind, self.profile, self.format
        )

    def charged(self) -> dict[str, Any]:
        """Kind -> bytes of what each stage sends on of one micro-batch, or back."""
        stages = range(self.order.stages if self.order.ranks > 1 else 0)  # else there are none
        runs = [self.stage_run(stage, train.WHOLE) for stage in stages]
        return {
            "messages": {
                kind: [run.message_bytes(kind.replace("I", "B")) for run in runs] for kind in "FBI"
            }
        }

    def planned(self) -> list:
        """Each rank's operations with their weight versions; of a schedule that repeats its batch,
        those of one."""
        lanes = lower(self.order, self.steps if self.order.asynchronous else 1).lanes
        return [[*place, ops] for place, ops in lanes.items()]

    def actions(self, rank: int) -> list[str]:
        return [name_of(step) for step in self.order.over(self.steps)[self.place(rank)]]

    @property
    def lowered(self) -> Plan:
        """The order of all steps, with the messages of tied weights."""
        if not (tied := self.tied_copies):
            return lower(self.order, self.steps)
        sizes = {site: size for part in self.memory.parts for site, size in part.sent.items()}
        return techniques.tied_plan.with_exchanges(self.order, self.steps, tied, sizes)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            *(
                Quantity(
                    f"peak memory, rank {r}",
                    "B",
                    lambda t, r=r: max((read.bytes for read in readings(t, r)), default=0),
                )
                for r in range(self.ranks)
            ),
            Quantity(
                "bytes sent, all ranks and steps",
                "B",
                lambda t: sum(t.bytes_sent(r) for r in range(t.ranks)),
            ),
            Quantity("loss, mean of last batch", "", self.last_loss, exact=False),
        )

    def last_loss(self, trace: Trace) -> float | None:
        """Mean loss of the last batch's micro-batches, of all ranks that report it: replicas, and
        slices the same one; None where the trace has none."""
        reported = self.order.micro_batches * self.ranks // self.order.ranks
        losses = samples(trace, "loss")[-reported:]
        return sum(losses) / len(losses) if losses else None

    def delay(self, stage: int) -> int:
        """Updates that a stage's weights are behind in the steady state: of its newest version,
        which its forward uses."""
        if not self.order.asynchronous:
            return 0
        stream = self.order.lengthened(4 * self.ranks)
        late = stream.micro_batches // self.order.update_size * self.order.update_size - 1
        return stream.version(Action("U", stage, late)) - stream.version(Action("F", stage, late))

    @property
    def unlike(self) -> str:
        return "older weights" * bool(self.rivals_by == "schedule" and self.delay(0))

    @property
    def relief(self) -> str:
        held = "micro-batches and weight versions" if self.order.asynchronous else "micro-batches"
        fewer = (
            "Smaller micro-batches (rows)"
            if self.schedule == "1f1b"
            else f"Fewer {held} in flight (schedule 1f1b), smaller ones (rows)"
        )
        return f"{fewer} or more ranks would need less on each device."

    def why(self, trace: Trace) -> Iterable[str]:
        return bubbles(trace, self.order)
