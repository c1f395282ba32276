"""What an action costs: ticks of compute, bytes of messages, bytes of memory, links between ranks.

A Cost is the only thing that prices a plan. The simulator reads it to predict; the ranks of a real run carry the
same Cost and advance their virtual clocks by it, so predicted and modelled time can be equal. Every duration is
rounded up to whole ticks once, here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from .impossible import Impossible
from .lane import FREE, Link


def exact(value) -> Fraction:
    """A number as the decimal it was written as: 0.1 is 1/10, not the nearest binary fraction."""
    try:
        return value if isinstance(value, Fraction) else Fraction(repr(float(value)) if isinstance(value, float) else value)
    except (ValueError, TypeError, OverflowError) as error:
        raise Impossible(f"{value!r} is no cost: give a finite number.") from error


@dataclass(frozen=True)
class Cost:
    """Prices by an action's kind and stage.

    durations   kind -> number, or one number a stage, in `unit`s. "F+B" prices an overlapped step of that shape;
                without it a step of several actions takes their sum.
    messages    kind -> bytes (or one number a stage) of the message that the action sends on.
    changes     action -> ((memory kind, change in bytes), ...) at the action's end.
    resident    rank -> ((memory kind, bytes), ...) that is there before the first action.
    links       (src, dst) -> Link; a pair that is missing is a free link.
    slowdown    rank -> factor on its durations: a straggler.
    capacity_bytes  what each rank's device holds; a real run that would hold more fails. None: no limit.
    """

    durations: Mapping[str, object]
    messages: Mapping[str, object] = field(default_factory=dict)
    changes: Mapping[object, tuple] = field(default_factory=dict)
    resident: Mapping[int, tuple] = field(default_factory=dict)
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    slowdown: Mapping[int, object] = field(default_factory=dict)
    unit: str = "slot"
    ticks_per_unit: int = 1000
    capacity_bytes: int | None = None

    def __post_init__(self):
        for name, table in (("duration", self.durations), ("message", self.messages), ("slowdown", self.slowdown)):
            for kind, prices in table.items():
                for price in prices if isinstance(prices, (tuple, list)) else (prices,):
                    if exact(price) < 0:
                        raise Impossible(f"The {name} of {kind} is {price}: a cost must not be negative.")
        object.__setattr__(self, "_ticks", {})
        object.__setattr__(self, "_bytes", {})

    @classmethod
    def of(cls, cost: "Cost | Mapping") -> "Cost":
        """A Cost as it is; a mapping such as {"F": 1, "B": 2} as durations with free links and no bytes."""
        return cost if isinstance(cost, Cost) else cls(durations=dict(cost))

    def __reduce__(self):  # the caches stay behind
        names = ("durations", "messages", "changes", "resident", "links", "slowdown", "unit", "ticks_per_unit", "capacity_bytes")
        return type(self), tuple(getattr(self, name) for name in names)

    def duration(self, step, rank: int) -> int:
        """Ticks of one step (a tuple of actions, run as one span) on this rank."""
        key = (rank, step[0].kind, step[0].stage) if len(step) == 1 else (rank, *((a.kind, a.stage) for a in step))
        if key not in self._ticks:
            together = "+".join(a.kind for a in step)
            if len(step) > 1 and together in self.durations:
                total = self._price(self.durations[together], step[0].stage)
            else:
                total = sum(self._price(self._of(a.kind), a.stage) for a in step)
            total *= exact(self.slowdown.get(rank, 1)) * self.ticks_per_unit
            self._ticks[key] = -(-total.numerator // total.denominator)
        return self._ticks[key]

    def message_bytes(self, action) -> int:
        """Bytes of the message that this action sends to the stage that waits for it."""
        key = (action.kind, action.stage)
        if key not in self._bytes:
            self._bytes[key] = int(self._price(self.messages.get(action.kind, 0), action.stage))
        return self._bytes[key]

    def memory(self, action) -> tuple[tuple[str, int], ...]:
        """Changes (kind, bytes) of this action's rank at the action's end."""
        return self.changes.get(action, ())

    def link(self, src: int, dst: int) -> Link:
        return self.links.get((src, dst), FREE)

    def _of(self, kind: str):
        if kind not in self.durations and kind in "FBIW":  # an update may be free, work is not
            raise Impossible(f'The cost has no duration for {kind}: add one to {dict(self.durations)}.')
        return self.durations.get(kind, 0)

    @staticmethod
    def _price(prices, stage: int) -> Fraction:
        if not isinstance(prices, (tuple, list)):
            return exact(prices)
        if stage >= len(prices):
            raise Impossible(f"The cost names {len(prices)} stages and there is a stage {stage}: give one number a stage.")
        return exact(prices[stage])
