"""The words on pictures: short labels of boxes, the unit of a time axis, and what a box waited for."""

import re
from collections import defaultdict
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ..core import Span, Trace, Transfer

ACTION = re.compile(r"(\d+)([A-Z])(\d+)")


class Waited(NamedTuple):
    """A span began `ticks` after its lane was free; `message` is the last one that arrived in that gap, if any did."""

    ticks: int
    message: Transfer | None


def waits(trace: Trace) -> dict[tuple[int, str, str], Waited]:
    """(rank, lane, name) -> how long the span waited and for which message; spans that did not wait are left out."""
    first = min((e.start for e in trace.events), default=0)
    spans, arrivals = defaultdict(list), defaultdict(list)
    for event in trace.events:
        if isinstance(event, Span):
            spans[event.rank, event.lane].append(event)
        elif isinstance(event, Transfer):
            arrivals[event.rank, event.lane].append(event)
    found = {}
    for lane, row in spans.items():
        messages = sorted(arrivals[lane], key=lambda t: t.end)
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


def labels(trace: Trace) -> dict[str, str]:
    """Span name -> label. "2F0" is F0 where each rank has one stage; "2F0+2F1+2F2" is F0-2."""
    names = {span.name: span.rank for span in trace.spans()}
    homes = {(rank, stage) for name, rank in names.items() for stage in stages_of(name)}
    many = len(homes) > len({rank for rank, _ in homes})
    return {name: label(name, many) for name in names}


@lru_cache(maxsize=1 << 16)
def stages_of(name: str) -> tuple[str, ...]:
    return tuple(stage for stage, _, _ in ACTION.findall(name))


@lru_cache(maxsize=1 << 16)
def label(name: str, with_stage: bool = False) -> str:
    """The label of one name; a name that is not made of actions stays as it is."""
    parts = name.split("+")
    actions = [ACTION.fullmatch(part) for part in parts]
    if not all(actions):
        return name
    heads = [(a[1] if with_stage else "") + a[2] for a in actions]
    numbers = [int(a[3]) for a in actions]
    if len(actions) > 1 and len(set(heads)) == 1 and all(b - a == 1 for a, b in pairwise(numbers)):
        return f"{heads[0]}{numbers[0]}–{numbers[-1]}"
    return "+".join(f"{head}{number}" for head, number in zip(heads, numbers, strict=True))


def axis_unit(trace: Trace) -> tuple[str, float]:
    """(unit for a time axis, its units per trace unit), so that the last number on it is between 1 and 1,000."""
    if trace.unit != "s":
        return trace.unit + "s", 1.0
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if trace.makespan * factor >= 1:
            return name, factor
    return "ns", 1e9
