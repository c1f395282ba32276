"""When a rank held the most bytes: the time, the action, and what it held of each kind."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from .events import Memory, Span
from .trace import Trace


class Peak(NamedTuple):
    """What a rank held at one time. `held`: kind -> bytes, none of them 0. `inside`: it was read inside the action, else at its end."""

    rank: int
    start: int
    action: str
    held: dict[str, int]
    inside: bool = False

    @property
    def bytes(self) -> int:
        return sum(self.held.values())

    @property
    def place(self) -> str:
        """In words: "in 0B1", "after 0F3", "before its first action"."""
        if not self.action:
            return "in an action that did not end"
        return "before its first action" if self.action == "start" else f"{'in' if self.inside else 'after'} {self.action}"


def readings(trace: Trace, rank: int) -> Iterator[Peak]:
    """All that was read of a rank, in time: what it holds at each action boundary, and between, on top of that, inside its actions."""
    settled: dict[str, int] = {}
    now: dict[str, int] = {}
    for (start, action, inside), changes in groupby(trace._sorted_out[Memory, rank], key=lambda e: (e.start, e.name, e.inside)):
        changed = {change.kind: change.bytes for change in changes}
        if inside:
            now |= changed
        else:
            settled |= changed
            now = dict(settled)
        yield Peak(rank, start, action, {kind: size for kind, size in now.items() if size}, inside)


def followed(trace: Trace) -> bool:
    """Whether readings inside actions tell of all kinds of memory, as a ledger's do; a meter's tell of activations alone."""
    return any(isinstance(e, Memory) and e.inside and e.kind != "activations" for e in trace.events)


def peak(trace: Trace, rank: int) -> Peak | None:
    """The rank's highest reading of all kinds together, the first of several; None where the trace has none.

    Where single storages were followed (Trace.at_peak), the peak is theirs.
    """
    if alive := trace.at_peak(rank):
        held: dict[str, int] = {}
        for each in alive:
            held[each.kind] = held.get(each.kind, 0) + each.bytes
        return Peak(rank, alive[0].start, action_at(trace, rank, alive[0].start), held, True)
    return max(readings(trace, rank), key=lambda each: each.bytes, default=None)


def action_at(trace: Trace, rank: int, tick: int) -> str:
    """The action of the rank during which a time lies, its end included; "" where there is none."""
    return next((s.name for s in trace.spans(rank) if s.start < tick <= s.end or s.start == tick == s.end), "")
