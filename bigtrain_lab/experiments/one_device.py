"""What every experiment on one device does: an order of actions is predicted by the simulator and
run by one process.

A subclass says in which order the device works, and runs it. What each action costs and leaves in
memory is found by its dry run.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from ..core import MEMORY_KINDS, Cost, Trace
from ..core.hardware import TICKS_PER_SECOND
from ..core.peak import placed
from ..core.trace import ACTION
from ..order.plan import Compute, Plan
from ..order.rates import last
from ..order.schedule import Action, Step
from ..order.simulate import simulate
from ..runtime.failure.faults import Fault
from ..runtime.memory.balance import read
from ..train.dry_run import Acted, DryRun, dry_run, with_levels_inside
from .experiment import Quantity
from .on_hardware import OnHardware


class OneDevice(OnHardware):
    """Needs the fields `hardware` and `steps`. The program opens `rank.span(step)` around each step
    of `order()`, in order, says by `rank.watch` what it holds, and logs each "loss"."""

    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory")
    ticks_per_slot: ClassVar[int] = 1000
    ledger: ClassVar[bool] = (
        True  # every operator's storages are followed, not only what is held at action boundaries
    )

    terms: ClassVar[dict[str, str]] = {
        "micro_batch": "step"
    }  # what the numbers of an action count (figures/words.py)

    @property
    def ranks(self) -> int:
        return 1

    @property
    def misfortune(self) -> Fault:
        """There is one rank that a fault can strike."""
        return Fault(self.fault, 0, self.fault_at, self.fault_factor)

    @classmethod
    def idle_settings(cls, settings: dict) -> set[str]:
        return super().idle_settings(settings) | {"fault_rank"}

    # -- what a subclass says ----------------------------------------------------------------------

    @abstractmethod
    def order(self) -> Iterable[Step]:
        """All that the device does in the whole run, each action once."""

    @property
    @abstractmethod
    def slots(self) -> dict:
        """Kind -> time on the textbook profile, in slots."""

    # -- the dry run -------------------------------------------------------------------------------

    shapes: ClassVar[tuple[str, ...]]  # the settings that decide what an action holds and computes
    format: ClassVar[str] = property(lambda self: self.dtype)  # of its products

    @cached_property
    def dry(self) -> DryRun:
        """What each action holds, computes and moves: the program itself, without values."""
        return dried(type(self), tuple(self.shaped().items()))

    def shaped(self) -> dict[str, Any]:
        """The settings of the dry run: those that decide shapes, and two steps, the first and one
        like all others."""
        return {name: getattr(self, name) for name in self.shapes} | {"steps": min(self.steps, 2)}

    def like(self, action: Action) -> Action:
        """The action of the dry run that an action of the run is like."""
        return action._replace(micro_batch=min(action.micro_batch, 1))

    def acted(self, action: Action) -> Acted:
        return self.dry.actions[str(self.like(action))]

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "terms": self.terms}

    # -- theory ------------------------------------------------------------------------------------

    def cost(self) -> Cost:
        time = (
            {"ticks_per_unit": self.ticks_per_slot}
            if self.profile.textbook
            else {"unit": "s", "ticks_per_unit": TICKS_PER_SECOND}
        )
        return self.misfortune.priced(
            Cost(
                self.durations(),
                changes=self.changes(),
                resident={0: tuple(self.resident())},
                capacity_bytes=self.capacity_bytes,
                **time,
            )
        )

    def durations(self) -> dict:
        """Kind -> time, in slots on the textbook profile, else in seconds: that of the last action
        of the kind."""
        if self.profile.textbook:
            return self.slots
        last = {action.kind: str(self.like(action)) for step in self.order() for action in step}
        return {
            kind: self.dry.seconds(name, self.profile, self.format) for kind, name in last.items()
        }

    def resident(self) -> Iterable[tuple[str, int]]:
        """(memory kind, bytes) of what is there before the first action."""
        return self.dry.start.items()

    def changes(self) -> dict:
        """Action -> ((memory kind, change in bytes), ...) at its end."""
        found, held = {}, self.dry.start
        for action in (action for step in self.order() for action in step):
            now = self.acted(action).after
            found[action] = tuple(
                (kind, more)
                for kind in MEMORY_KINDS
                if (more := now.get(kind, 0) - held.get(kind, 0))
            )
            held = now
        return found

    def predict(self) -> Trace:
        return self.looked_into(replace(simulate(self.lowered, self.cost()), settings=self.told))

    @property
    def lowered(self) -> Plan:
        """The order, each action on the weights of so many updates."""
        operations, updates = [], 0
        for step in self.order():
            operations.append(Compute(step, updates))
            updates += step[0].kind == "U"
        return Plan({(0, "compute"): tuple(operations)}, ranks=1, steps=self.steps)

    def looked_into(self, trace: Trace) -> Trace:
        """The trace with levels inside each action, the highest among them, and all that is alive
        at the peak."""
        dry, first = self.dry, {}

        def inside(span):
            name = str(
                self.like(Action(span.kind, *map(int, ACTION.fullmatch(span.name).group(1, 3))))
            )
            first.setdefault(name, span)
            acted = dry.actions[name]
            others = sum(size for kind, size in acted.before.items() if kind not in acted.kinds)
            return acted.kinds, acted.inside, [0] * len(acted.kinds), others

        trace = with_levels_inside(trace, inside)
        if (span := first.get(dry.peak_action)) is None:
            return trace
        at, told = span.end, read(dry.actions[dry.peak_action].inside)
        if dry.peak_at is not None:
            at = placed(span.start, span.end, len(told))[told.index(dry.peak_at)]
        made = {name: each.name for name, each in first.items()}
        alive = (
            row._replace(start=at, lane=span.lane, made=made.get(row.made, row.made))
            for row in dry.alive
        )
        return Trace.of([*trace.events, *alive], **trace.header())

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        unit = "slot" if self.profile.textbook else "s"
        return (
            Quantity("step time", unit, lambda t: t.step_time),
            Quantity("peak memory, between actions", "B", lambda t: t.peak_bytes(0)),
            Quantity("loss, last", "", lambda t: last(t, "loss"), exact=False),
        )


@lru_cache(maxsize=64)
def dried(cls: type[OneDevice], settings: tuple[tuple[str, Any], ...]) -> DryRun:
    """The dry run of an experiment; settings that do not change shapes find it done."""
    return dry_run(cls(**dict(settings)).program)
