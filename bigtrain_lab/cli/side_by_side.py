"""Runs side by side: the settings that differ, each quantity, the first event that differs, and what the ranks returned.

Everything is compared with the first run that is named. Nothing here prints: screen.py shows the sentences and rows.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from .. import report
from ..checks.clocks import by_lane
from ..core import Impossible, Trace
from ..figures.words import label
from ..runtime import Run
from ..words import duration, size
from .reopen import Reopened, reopen

PREFERRED = ("modelled", "predicted", "measured")
RANKED = ("Span", "Transfer", "Memory")  # of differences at the same time, what is told


class Side(NamedTuple):
    """One of the runs, with the letter that it is called by."""

    letter: str
    path: Path
    opened: Reopened

    @property
    def settings(self) -> dict:
        given = self.opened.run.settings["settings"] if self.opened.run else next(iter(self.opened.traces.values())).settings
        return {name: value for name, value in given.items() if name not in ("experiment", "unfinished")}

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.opened.run.settings["name"] if self.opened.run else str(next(iter(self.opened.traces.values())).settings.get("experiment", "?"))

    @property
    def about(self) -> str:
        """Which run it is, in a line."""
        run = self.opened.run
        ranks = run.ranks if run else next(iter(self.opened.traces.values())).ranks
        on = f"{self.name} on {ranks} rank{'' if ranks == 1 else 's'}"
        return f"{self.path}: {on}, " + (f"started {run.settings['started']}: {run.state}" if run else "a saved trace")


def sides(paths: Iterable[Path]) -> list[Side]:
    """The runs, opened; Impossible for fewer than two, or where they answer different questions."""
    paths = list(paths)
    if not 2 <= len(paths) <= len(ascii_uppercase):
        raise Impossible(f"{len(paths)} run{'' if len(paths) == 1 else 's'} cannot be compared: name 2 or more, up to {len(ascii_uppercase)}.")
    found = [Side(letter, path, reopen(path)) for letter, path in zip(ascii_uppercase, paths, strict=False)]
    for other in found[1:]:
        if other.name != found[0].name:
            raise Impossible(f"{found[0].path} is of the experiment {found[0].name} and {other.path} of {other.name}: compare runs of one experiment.")
    return found


def on_one_clock(found: list[Side], clock: str | None) -> list[Trace]:
    """Their traces on this clock, by default the first of PREFERRED that all have; Impossible where they have none in common."""
    common = [name for name in PREFERRED if all(name in side.opened.traces for side in found)]
    if clock not in (None, *common) or not common:
        lacking = next(side for side in found if clock not in side.opened.traces) if clock else found[-1]
        raise Impossible(f"{lacking.path} has no {clock or PREFERRED[0]} times: " + (
            f"choose {' or '.join(common)}." if common else "these have no clock in common, so compare runs with runs."))
    traces = [side.opened.traces[clock or common[0]] for side in found]
    for side, trace in zip(found, traces, strict=True):
        if trace.unit != traces[0].unit:
            raise Impossible(f"{found[0].path} counts {traces[0].clock} time in {units(traces[0])} and {side.path} in {units(trace)}: "
                             f"compare runs on profiles of one kind{', or say --clock measured' if 'measured' in common else ''}.")
    return traces


def units(trace: Trace) -> str:
    return {"s": "seconds", "slot": "slots"}.get(trace.unit, trace.unit)


def settings_that_differ(found: list[Side]) -> list[tuple[str, list]]:
    """(name, its value in each) of every setting that is not the same in all; None where there is no such setting."""
    names = dict.fromkeys(name for side in found for name in side.settings)
    values = {name: [side.settings.get(name) for side in found] for name in names}
    return [(name.replace("_", "-"), each) for name, each in values.items() if any(value != each[0] for value in each)]


class Line(NamedTuple):
    """A quantity in each run, and how each of the others differs from the first."""

    quantity: str
    amounts: list[report.Amount | None]
    differences: list[str]


def lines(found: list[Side], traces: list[Trace]) -> list[Line]:
    """A line a quantity that any of the experiments has."""
    tables = [report.rows(side.opened.experiment.quantities, trace) if side.opened.experiment else []
              for side, trace in zip(found, traces, strict=True)]
    columns = [{row.quantity: amount for row in table if (amount := getattr(row, traces[0].clock)) is not None} for table in tables]
    rows = [(name, [column.get(name) for column in columns]) for name in dict.fromkeys(name for column in columns for name in column)]
    return [Line(name, each, [report.gap(each[0], other) if each[0] and other else "" for other in each[1:]]) for name, each in rows]


# -- events --------------------------------------------------------------------------------------------------------


def first_difference(a: Trace, b: Trace) -> str | None:
    """The earliest event in which two traces of one unit differ, in words; None where they are the same, event for event."""
    scale = math.lcm(a.ticks_per_unit, b.ticks_per_unit)
    ours, theirs = (rows_of(trace, scale // trace.ticks_per_unit) for trace in (a, b))
    differing = []
    for row in sorted(ours | theirs):
        pair = next((pair for pair in zip_longest(ours.get(row, []), theirs.get(row, [])) if pair[0] != pair[1]), None)
        if pair:
            rank, _, kind_of_event = row
            start = min(event[3] for event in pair if event)
            differing.append((start, RANKED.index(kind_of_event), rank, *pair))
    if not differing:
        return None
    _, _, rank, x, y = min(differing, key=lambda each: each[:3])
    return f"rank {rank}, {told(x, y, lambda ticks: duration(ticks / scale, a.unit))}"


def rows_of(trace: Trace, scale: int) -> dict[tuple, list[tuple]]:
    """(rank, lane, sort of event) -> the events there, as `by_lane` has them, with this many ticks for each of the trace's."""
    rows = defaultdict(list)
    for (rank, lane), events in by_lane(trace).items():
        for event in events:
            rows[rank, lane, event[0]].append((*event[:3], event[3] * scale, event[4] * scale, *event[5:]))
    return dict(rows)


def told(x: tuple | None, y: tuple | None, time) -> str:
    """What differs between two events, the first thing that does."""
    if x and y and x[:3] != y[:3] and x[3] == y[3]:
        return f"{thing(x)} against {thing(y)} at {time(x[3])}"
    if x is None or y is None or x[:3] != y[:3]:
        return " against ".join("nothing" if event is None else f"{thing(event)} at {time(event[3])}" for event in (x, y))
    place = next(place for place in range(3, 7) if x[place] != y[place])
    word, say = {3: ("at", time), 4: ("until", time), 5: ("with", size), 6: ("with weight version", str)}[place]
    return f"{thing(x)} {word} {say(x[place])} against {say(y[place])}"


def thing(event: tuple) -> str:
    what, kind, name = event[0], event[1], label(event[2], with_stage=True)
    return {"Span": name, "Transfer": f"the message of {name}", "Memory": f"{kind} after {name}" if name else kind}[what]


# -- results -------------------------------------------------------------------------------------------------------


def results_differ(a: Side, b: Side) -> str | None:
    """What the ranks returned (weights, losses), in a sentence; None where a prediction is among the two, since it returns nothing.

    A tensor is off by |b - a| / max(|a|, 1e-3 |all of A|), as checks.parity measures it: of one that is zero up to rounding no more
    can be said.
    """
    if not (a.opened.run and b.opened.run):
        return None
    for side in (a, b):
        if side.opened.run.state != "done":
            return f"not compared, since {side.letter} is {side.opened.run.state}."
    ours, theirs = returned(a.opened.run), returned(b.opened.run)
    alone = [(side.letter, only) for side, only in ((a, ours.keys() - theirs.keys()), (b, theirs.keys() - ours.keys())) if only]
    if alone:
        letter, names = alone[0]
        return f"of different models: only {letter} has {min(names)}" + (f" and {len(names) - 1} more." if len(names) > 1 else ".")
    shapes = [name for name in ours if ours[name].shape != theirs[name].shape]
    if shapes:
        return f"of different models: {shapes[0]} has shape {ours[shapes[0]].shape} against {theirs[shapes[0]].shape}."
    floor = 1e-3 * math.sqrt(sum(norm(array) ** 2 for array in ours.values()))
    off = {name: norm(theirs[name] - ours[name]) / max(norm(ours[name]), floor) for name in ours if not same_bits(ours[name], theirs[name])}
    if not off:
        return f"equal bit for bit, in all {len(ours)} tensors."
    worst = max(off, key=lambda name: math.inf if math.isnan(off[name]) else off[name])
    return f"{len(off)} of {len(ours)} tensors differ, most {worst}: by {off[worst]:.3g} of its norm."


def returned(run: Run) -> dict[str, np.ndarray]:
    try:
        return run.result
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise Impossible(f"The results in {run.directory} cannot be read ({error}): run it again.") from error


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def norm(array: np.ndarray) -> float:
    """|a|_2 in float64; nan where it holds one."""
    return float(np.linalg.norm(array.astype(np.float64)))
