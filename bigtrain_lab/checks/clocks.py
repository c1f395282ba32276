"""What was predicted, was modelled and measured: time event for event, and bytes after each action.

Per (rank, lane) the list of (kind, name, start, end, bytes) must be identical, and per (rank, kind
of memory) the list of (action, bytes). A trace's scalars are left out: a prediction knows no loss.
"""

from collections.abc import Iterator
from itertools import zip_longest

from ..core import Memory, Span, Trace, Transfer, grouped


def clocks_differ(predicted: Trace, modelled: Trace) -> list[str]:
    """One sentence for each lane whose events differ, naming the first event that does."""
    return [
        f"rank {rank}, lane {lane}, event {number}: predicted {a}, modelled {b}"
        for (rank, lane), number, a, b in first_differences(by_lane(predicted), by_lane(modelled))
    ]


def bytes_differ(predicted: Trace, measured: Trace) -> list[str]:
    """One sentence for each rank and kind of memory whose levels differ, naming the first action
    after which they do."""
    return [
        f"rank {rank}, {kind}: predicted {a}, measured {b}"
        for (rank, kind), _, a, b in first_differences(by_kind(predicted), by_kind(measured))
    ]


def first_differences(ours: dict[tuple, list], theirs: dict[tuple, list]) -> Iterator[tuple]:
    """(row, position, our entry, theirs) of the first entry that differs in each row; None where
    one ends."""
    for row in sorted(ours | theirs):
        for number, (a, b) in enumerate(zip_longest(ours.get(row, []), theirs.get(row, []))):
            if a != b:
                yield row, number, a, b
                break


def by_kind(trace: Trace) -> dict[tuple[int, str], list]:
    """(rank, memory kind) -> (action, bytes held after it), in order."""
    return grouped(
        ((e.rank, e.kind), (e.name, e.bytes))
        for e in trace.events
        if isinstance(e, Memory) and not e.inside
    )


def by_lane(trace: Trace) -> dict[tuple[int, str], list]:
    """(rank, lane) -> its events, each as (sort, kind, name, start, end, bytes or None, and of a
    span its version)."""
    return grouped(
        (
            (e.rank, e.lane),
            (
                type(e).__name__,
                e.kind,
                e.name,
                e.start,
                e.end,
                getattr(e, "bytes", None),
                *((e.version,) if isinstance(e, Span) else ()),
            ),
        )
        for e in trace.events
        if isinstance(e, (Span, Transfer)) or (isinstance(e, Memory) and not e.inside)
    )
