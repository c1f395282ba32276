"""What every experiment on one device does: an order of actions is predicted by the simulator and
run by one process.

A subclass says in which order the device works, and runs it. What each action costs and leaves in
memory is found by its dry run.
"""

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

from .. import train
from ..order import Action, Compute, Plan, Step, last
from ..runtime.kept import kept
from .experiment import Quantity
from .on_hardware import OnOneRank


class OneDevice(OnOneRank):
    """Needs the fields `hardware` and `steps`. The program opens `rank.span(step)` around each step
    of `order()`, in order, says by `rank.watch` what it holds, and logs each "loss"."""

    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory")
    ledger: ClassVar[bool] = (
        True  # every operator's storages are followed, not only what is held at action boundaries
    )

    terms: ClassVar[dict[str, str]] = {"micro_batch": "step"}

    # -- what a subclass says ----------------------------------------------------------------------

    @abstractmethod
    def order(self) -> Iterable[Step]:
        """All that the device does in the whole run, each action once."""

    # -- the dry run -------------------------------------------------------------------------------

    shapes: ClassVar[tuple[str, ...]]  # the settings that decide what an action holds and computes
    format: ClassVar[str] = property(lambda self: self.dtype)  # of its products

    @cached_property
    def dry(self) -> train.DryRun:
        """What each action holds, computes and moves: the program itself, without values."""
        return dried(type(self), tuple(self.shaped().items()), self.members(self.shaped()))

    def shaped(self) -> dict[str, Any]:
        """The settings of the dry run: those that decide shapes, and two steps, the first and one
        like all others."""
        return {name: getattr(self, name) for name in self.shapes} | {"steps": min(self.steps, 2)}

    def like(self, action: Action) -> Action:
        """The action of the dry run that an action of the run is like."""
        return action._replace(micro_batch=min(action.micro_batch, 1))

    def acted(self, action: Action) -> train.Acted:
        return self.dry.actions[str(self.like(action))]

    # -- theory ------------------------------------------------------------------------------------

    def priced(self) -> dict:
        """That of the last action of the kind."""
        last = {action.kind: str(self.like(action)) for step in self.order() for action in step}
        return {
            kind: self.dry.seconds(name, self.profile, self.format) for kind, name in last.items()
        }

    @cached_property
    def memory(self) -> train.Holdings:
        return self.likened(self.dry)

    def likened(self, dry: train.DryRun) -> train.Likened:
        return train.Likened(lambda rank: dry, self.like, [chain.from_iterable(self.order())])

    @property
    def lowered(self) -> Plan:
        """The order, each action on the weights of so many updates."""
        operations, updates = [], 0
        for step in self.order():
            operations.append(Compute(step, updates))
            updates += step[0].kind == "U"
        return Plan({(0, "compute"): tuple(operations)}, ranks=1, steps=self.steps)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            Quantity("peak memory, between actions", "B", lambda t: t.peak_bytes(0)),
            Quantity("loss, last", "", lambda t: last(t, "loss"), exact=False),
        )


@kept
def dried(
    cls: type[OneDevice], settings: tuple[tuple[str, Any], ...], members: tuple[type, ...]
) -> train.DryRun:
    """The dry run of an experiment; settings that do not change shapes find it done. `members`:
    the classes that the settings name."""
    return train.dry_run.dry_run(cls(**dict(settings)).program)
