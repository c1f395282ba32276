"""When a rank held the most bytes: the time, the action, and what it held of each kind."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from .events import Memory
from .grouped import grouped
from .trace import Trace, once


class Peak(NamedTuple):
    """What a rank held at one time. `held`: kind -> bytes, none of them 0. `inside`: it was read
    inside the action, else at its end."""

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
        return (
            "before its first action"
            if self.action == "start"
            else f"{'in' if self.inside else 'after'} {self.action}"
        )


@once  # table, sentences and pictures all ask
def readings(trace: Trace, rank: int) -> list[Peak]:
    """All that was read of a rank, in time: what it holds at each action boundary, and between, on
    top of that, inside its actions."""
    return [*summed(trace._sorted_out[Memory, rank], rank)]


def over_step(trace: Trace, rank: int, step: int, most: int) -> list[Peak]:
    """What a rank holds over a step (the first is 0), from its start on: each reading, or of more
    than `most` the highest of each of `most` stretches of equal length. Readings inside actions
    count only where they tell of all kinds."""
    deep = followed(trace)
    told = [read for read in readings(trace, rank) if deep or not read.inside]
    begin, end = (trace._begin(), *trace.step_ends)[step : step + 2]
    before = [read._replace(start=begin) for read in told if read.start <= begin][-1:]
    inside = [read for read in told if begin < read.start <= end]
    if len(inside) > most:
        stretches = groupby(inside, lambda read: (read.start - begin) * most // (end - begin + 1))
        inside = [max(reads, key=lambda read: read.bytes) for _, reads in stretches]
    return before + inside


def summed(events: list[Memory], rank: int) -> Iterator[Peak]:
    settled: dict[str, int] = {}
    now: dict[str, int] = {}
    for moment in moments(events):
        changed, (*_, action, start, _, inside) = (
            {change.kind: change.bytes for change in moment},
            moment[0],
        )
        if inside:
            now |= changed
        else:
            settled |= changed
            now = dict(settled)
        yield Peak(rank, start, action, {kind: size for kind, size in now.items() if size}, inside)


def moments(events: list[Memory]) -> Iterator[list[Memory]]:
    """What was told together: of one action at one time; inside an action that takes no time, until
    a kind is told again."""
    moment: list[Memory] = []
    for event in events:
        if moment and (
            event[3:5] != moment[0][3:5]
            or event.inside != moment[0].inside
            or event.inside
            and event.kind in {e.kind for e in moment}
        ):
            yield moment
            moment = []
        moment.append(event)
    if moment:
        yield moment


def placed(start: int, end: int, count: int) -> list[int]:
    """Ticks of `count` readings inside an action on a clock that knows only its start and end: in
    their order, evenly between the two."""
    return [start + (i + 1) * (end - start) // (count + 1) for i in range(count)]


def followed(trace: Trace) -> bool:
    """Whether readings inside actions tell of all kinds of memory, as a ledger's do; a coarse one's
    may tell of activations alone."""
    return any(e.inside and e.kind != "activations" for e in trace._sorted_out[Memory, None])


@once
def peak(trace: Trace, rank: int) -> Peak | None:
    """The rank's highest reading of all kinds together, the first of several; None where the trace
    has none.

    Where single storages were followed (Trace.at_peak), the peak is theirs; of a run that broke off
    they may be those of an earlier one.
    """
    most = max(readings(trace, rank), key=lambda each: each.bytes, default=None)
    alive = trace.at_peak(rank)
    if alive and not (
        trace.settings.get("unfinished") and most and most.bytes > sum(e.bytes for e in alive)
    ):
        by_kind = grouped((each.kind, each.bytes) for each in alive)
        held = {kind: sum(sizes) for kind, sizes in by_kind.items()}
        found, start = Peak(rank, alive[0].start, "", held, True), alive[0].start
        read = next(
            (
                each
                for each in readings(trace, rank)
                if (each.start, each.bytes) == (start, found.bytes)
            ),
            None,
        )
        return found._replace(action=read.action if read else action_at(trace, rank, start))
    return most


def action_at(trace: Trace, rank: int, tick: int) -> str:
    """The action of the rank during which a time lies, its end included; "" where there is none,
    and at the end of all that a rank has done where it did not finish: there its modelled clock
    stands, whatever it was doing."""
    spans = trace.spans(rank)
    if spans and trace.settings.get("unfinished") and tick == spans[-1].end:
        return ""
    return next((s.name for s in spans if s.start < tick <= s.end or s.start == tick == s.end), "")
