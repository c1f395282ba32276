"""Where two runs part: the first event that differs, and how far what their ranks returned is
apart, each in a sentence."""

import math
from collections.abc import Mapping

import numpy as np

from ..core import Trace, duration, grouped, size
from ..view.words import label
from .clocks import by_lane, first_differences
from .parity import relative_errors

RANKED = ("Span", "Transfer", "Memory")  # of differences at the same time, what is told


def first_difference(a: Trace, b: Trace) -> str | None:
    """The earliest event in which two traces of one unit differ, in words; None where they are the
    same, event for event."""
    scale = math.lcm(a.ticks_per_unit, b.ticks_per_unit)
    ours, theirs = (rows_of(trace, scale // trace.ticks_per_unit) for trace in (a, b))
    differing = [
        (min(event[3] for event in (x, y) if event), RANKED.index(kind_of_event), rank, x, y)
        for (rank, _, kind_of_event), _, x, y in first_differences(ours, theirs)
    ]
    if not differing:
        return None
    _, _, rank, x, y = min(differing, key=lambda each: each[:3])
    return f"rank {rank}, {told(x, y, lambda ticks: duration(ticks / scale, a.unit))}"


def rows_of(trace: Trace, scale: int) -> dict[tuple, list[tuple]]:
    """(rank, lane, sort of event) -> the events there, as `by_lane` has them, with this many ticks
    for each of the trace's."""
    return grouped(
        ((*lane, event[0]), (*event[:3], event[3] * scale, event[4] * scale, *event[5:]))
        for lane, events in by_lane(trace).items()
        for event in events
    )


def told(x: tuple | None, y: tuple | None, time) -> str:
    """What differs between two events, the first thing that does."""
    if x and y and x[:3] != y[:3] and x[3] == y[3]:
        return f"{thing(x)} against {thing(y)} at {time(x[3])}"
    if x is None or y is None or x[:3] != y[:3]:
        return " against ".join(
            "nothing" if event is None else f"{thing(event)} at {time(event[3])}"
            for event in (x, y)
        )
    place = next(place for place in range(3, 7) if x[place] != y[place])
    word, say = {
        3: ("at", time),
        4: ("until", time),
        5: ("with", size),
        6: ("with weight version", str),
    }[place]
    return f"{thing(x)} {word} {say(x[place])} against {say(y[place])}"


def thing(event: tuple) -> str:
    what, kind, name = event[0], event[1], label(event[2], with_stage=True)
    return {
        "Span": name,
        "Transfer": f"the message of {name}",
        "Memory": f"{kind} after {name}" if name else kind,
    }[what]


def arrays_apart(ours: Mapping, theirs: Mapping, letters: tuple[str, str] = ("A", "B")) -> str:
    """How far two runs' arrays are apart, in a sentence: |b - a| / max(|a|, 1e-3 |all of a|) of
    each, as parity measures it."""
    alone = [
        (letter, only)
        for letter, only in zip(letters, (ours.keys() - theirs.keys(), theirs.keys() - ours.keys()))
        if only
    ]
    if alone:
        letter, names = alone[0]
        return f"of different models: only {letter} has {min(names)}" + (
            f" and {len(names) - 1} more." if len(names) > 1 else "."
        )
    shapes = [name for name in ours if ours[name].shape != theirs[name].shape]
    if shapes:
        return (
            f"of different models: {shapes[0]} has shape {ours[shapes[0]].shape} against"
            f" {theirs[shapes[0]].shape}."
        )
    other = [
        name
        for name, a in ours.items()
        if (a.dtype, a.tobytes()) != (theirs[name].dtype, theirs[name].tobytes())
    ]
    if not other:
        return f"equal bit for bit, in all {len(ours)} tensors."
    if text := [
        name for name in other if {ours[name].dtype.kind, theirs[name].dtype.kind} & set("SU")
    ]:
        return f"{len(other)} of {len(ours)} tensors differ; {text[0]} is text."
    errors = relative_errors(theirs, ours)
    worst = max(other, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name])
    of = (
        " of its norm"
        if any(np.any(array) for array in ours.values())
        else f", where {letters[0]} has zeros alone"
    )
    return f"{len(other)} of {len(ours)} tensors differ, most {worst}: by {errors[worst]:.3g}{of}."
