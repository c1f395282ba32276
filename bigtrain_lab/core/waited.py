"""What a box of a trace waited for: the time its lane was free before it, and the last message that
came in that time."""

from typing import NamedTuple

from .grouped import grouped
from .trace import Trace, Transfer


class Waited(NamedTuple):
    """A span began `ticks` after its lane was free; `message` is the last one that arrived in that
    gap, if any did."""

    ticks: int
    message: Transfer | None


def waited(trace: Trace) -> dict[tuple[int, str, str], Waited]:
    """(rank, lane, name) -> how long the span waited and for which message; spans that did not wait
    are left out."""
    first = min((e.start for e in trace.events), default=0)
    spans = grouped(((span.rank, span.lane), span) for span in trace.spans())
    arrivals = grouped(((each.rank, each.lane), each) for each in trace.transfers())
    found = {}
    for lane, row in spans.items():
        messages = sorted(arrivals.get(lane, ()), key=lambda t: t.end)
        at, free = 0, first
        for span in row:
            last = None
            while at < len(messages) and messages[at].end <= span.start:
                last = messages[at] if messages[at].end > free else last
                at += 1
            if span.start > free:
                found[span.rank, span.lane, span.name] = Waited(span.start - free, last)
            free = max(free, span.end)
    return found
