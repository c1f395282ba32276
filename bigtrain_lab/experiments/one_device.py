"""What every experiment on one device does: an order of actions is predicted by the simulator and run by one process.

A subclass says in which order the device works, what each action costs and what it leaves in memory, and runs it.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from ..core import Alive, Cost, Memory, Scalar, Trace
from ..core.hardware import TICKS_PER_SECOND
from ..core.peak import placed
from ..core.trace import ACTION
from ..explain import not_finite
from ..models import Account
from ..plan import Compute, Plan
from ..runtime.faults import Fault
from ..schedule import Step
from ..simulate import simulate
from .experiment import Quantity
from .on_hardware import OnHardware


READINGS, MOST = 16, 2000  # levels told inside an action, and in all; of many actions, less of each


class OneDevice(OnHardware):
    """Needs the fields `hardware` and `steps`. The program opens `rank.span(step)` around each step of `order()`, in order,
    says by `rank.watch` what it holds, and logs each "loss"."""

    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory")
    ticks_per_slot: ClassVar[int] = 1000
    ledger: ClassVar[bool] = True  # every operator's storages are followed, not only what is held at action boundaries

    terms: ClassVar[dict[str, str]] = {"micro_batch": "step"}  # what the numbers of an action count (figures/words.py)

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

    # -- what a subclass says -------------------------------------------------------------------------------

    @abstractmethod
    def order(self) -> Iterable[Step]:
        """All that the device does in the whole run, each action once."""

    @abstractmethod
    def durations(self) -> dict:
        """Kind -> time, or one time a stage (the second number of an action); in slots on the textbook profile, else in seconds."""

    @abstractmethod
    def changes(self) -> dict:
        """Action -> ((memory kind, change in bytes), ...) at its end."""

    @abstractmethod
    def resident(self) -> Iterable[tuple[str, int]]:
        """(memory kind, bytes) of what is there before the first action."""

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "terms": self.terms}

    # -- theory ---------------------------------------------------------------------------------------------

    def cost(self) -> Cost:
        time = {"ticks_per_unit": self.ticks_per_slot} if self.profile.textbook else {"unit": "s", "ticks_per_unit": TICKS_PER_SECOND}
        return self.misfortune.priced(Cost(self.durations(), changes=self.changes(), resident={0: tuple(self.resident())},
                                           capacity_bytes=self.capacity_bytes, **time))

    @property
    def account(self) -> Account | None:
        """Every storage of the run, from shapes alone, where the models can tell it: then the prediction knows the levels inside actions,
        else those at their ends."""
        return None

    def walked(self, kind: str, number: int) -> str:
        """What the account calls an action, the one with the kind and the last number: "B0"."""
        return f"{kind}{number}"

    def predict(self) -> Trace:
        plan = Plan({(0, "compute"): tuple(map(Compute, self.order()))}, ranks=1, steps=self.steps)
        trace = replace(simulate(plan, self.cost()), settings=self.told)
        return trace if self.account is None else looked_into(trace, self.account, self.walked)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        unit = "slot" if self.profile.textbook else "s"
        return (Quantity("step time", unit, lambda t: t.step_time), Quantity("peak memory, between actions", "B", lambda t: t.peak_bytes(0)),
                Quantity("loss, last", "", last_loss, exact=False))

    def explain(self, trace: Trace) -> list[str]:
        said, most = super().explain(trace), trace.peak_bytes(0)
        if self.account is None and trace.clock == "predicted" and self.capacity_bytes and most <= self.capacity_bytes < 2 * most:
            said.append("This prediction knows what is held where actions end. A run is limited at the very operator, and may hold more inside an action.")
        return said + not_finite(trace)


def looked_into(trace: Trace, account: Account, walked: Callable[[str, int], str]) -> Trace:
    """The trace with levels inside each action, the highest among them, and all that is alive at the peak."""
    spans, made = [(walked(span.kind, int(ACTION.fullmatch(span.name)[3])), span) for span in trace.spans(0)], {"": ""}
    few, levels, peak, events = MOST // len(spans), account.levels_by_kind, account.peak_moment, list(trace.events)
    for action, span in spans:
        moments, last, first = account.moments_of(action), {}, made.setdefault(action, span.name)
        if not moments:  # an update without temporaries or new state
            continue
        told = sorted({*moments[::-(-len(moments) // max(1, min(READINGS, few)))], max(moments, key=account.levels.__getitem__), moments[-1]})
        for moment, tick in zip(told, placed(span.start, span.end, len(told))):
            held = {kind: own[moment] for kind, own in levels.items()}
            events += [Memory(0, span.lane, kind, span.name, tick, size, True) for kind, size in held.items() if size != last.get(kind)]
            last = held
            if moment == peak and span.name == first:
                events += [Alive(0, span.lane, row.kind, row.name, tick, row.bytes, made=made[row.made]) for row in account.at_peak()]
    return Trace.of(events, **trace.header())


def last_loss(trace: Trace) -> float | None:
    """The last loss that was logged; None where the trace has none."""
    losses = [e.value for e in trace.where(Scalar, name="loss")]
    return losses[-1] if losses else None
