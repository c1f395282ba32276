"""Predicted and modelled time are equal, event for event: the same program under the same clock.

Per (rank, lane) the list of (kind, name, start, end, bytes) must be identical. A trace's scalars are left out: a
prediction knows no loss.
"""

from collections import defaultdict
from itertools import zip_longest

from ..core import Memory, Span, Trace, Transfer


def clocks_differ(predicted: Trace, modelled: Trace) -> list[str]:
    """One sentence for each lane whose events differ, naming the first event that does."""
    ours, theirs = by_lane(predicted), by_lane(modelled)
    findings = []
    for lane in sorted(ours | theirs):
        for number, (a, b) in enumerate(zip_longest(ours.get(lane, []), theirs.get(lane, []))):
            if a != b:
                findings.append(f"rank {lane[0]}, lane {lane[1]}, event {number}: predicted {a}, modelled {b}")
                break
    return findings


def bytes_differ(predicted: Trace, measured: Trace) -> list[str]:
    """One sentence for each rank and kind of memory whose levels differ, naming the first action after which they do."""
    ours, theirs = by_kind(predicted), by_kind(measured)
    findings = []
    for row in sorted(ours | theirs):
        for a, b in zip_longest(ours.get(row, []), theirs.get(row, [])):
            if a != b:
                findings.append(f"rank {row[0]}, {row[1]}: predicted {a}, measured {b}")
                break
    return findings


def by_kind(trace: Trace) -> dict[tuple[int, str], list]:
    """(rank, memory kind) -> (action, bytes held after it), in order."""
    kinds = defaultdict(list)
    for e in trace.events:
        if isinstance(e, Memory) and not e.inside:
            kinds[e.rank, e.kind].append((e.name, e.bytes))
    return dict(kinds)


def by_lane(trace: Trace) -> dict[tuple[int, str], list]:
    lanes = defaultdict(list)
    for e in trace.events:
        if isinstance(e, (Span, Transfer)) or (isinstance(e, Memory) and not e.inside):
            version = (e.version,) if isinstance(e, Span) else ()
            lanes[e.rank, e.lane].append((type(e).__name__, e.kind, e.name, e.start, e.end, getattr(e, "bytes", None), *version))
    return dict(lanes)
