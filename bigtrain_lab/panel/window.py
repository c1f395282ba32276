"""The training steps of a long trace that are drawn: two hundred steps look alike, and a browser draws what it is sent.

A part is cut where steps end. Ranks that never wait for a batch's end are then in the next step already, so boxes of a
neighbouring step may reach into it; it begins with what its ranks held then. The table tells of the whole trace.
"""

from bisect import bisect_right
from dataclasses import replace

from ..core import Memory, Trace
from ..core.trace import IN_TIME

DRAWN = 8_000  # events: a move of a control stays below a third of a second


def steps_drawn(trace: Trace) -> int:
    """How many steps of a trace are drawn at once: all, or as many as make DRAWN events."""
    return trace.steps if len(trace) <= DRAWN else max(1, DRAWN * trace.steps // len(trace))


def window(trace: Trace, first: int, steps: int) -> Trace:
    """The part of a trace from step `first` (the first is 0) on, that many steps."""
    if first <= 0 and steps >= trace.steps:
        return trace
    start = trace.step_ends[first - 1] if first > 0 else trace.events[0].start
    end = trace.step_ends[first + steps - 1]
    events = trace.events
    if first + steps < trace.steps:  # what ends with the step is its own, an update that takes no time too
        events = [e for e in events[:bisect_right(events, end, key=lambda e: e.start)] if e.start < end or e.end == end]
    if first > 0:
        held, kept = {}, []
        for event in events:
            if event.end > start:
                kept.append(event)
            elif isinstance(event, Memory) and not event.inside:
                held[event.rank, event.kind] = event
        opens = min((event.start for event in kept), default=start)
        events = sorted([*(e._replace(name="start", start=opens) for e in held.values()), *kept], key=IN_TIME)
    return replace(trace, events=tuple(events), steps=steps)
