"""A trace is what happened: immutable events on one clock, the common language of the library.

The simulator makes one (clock "predicted"), a real run makes two from one log ("modelled",
"measured"); figures, player, tests and graders only read. Times are integer ticks; every answer is
in the trace's `unit`.

Two measures of a pipeline's bubble are in use, so each answer says which:
    makespan   share of all rank-time in which a rank is idle:  1 - sum(busy) / (ranks * makespan)
    window     (longest window - busiest rank) / longest window, a rank's window being its last end
               - first start (Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv:2401.10241,
               section 5)

Neither tells a rank that waits for a sum from one without work, so panels, tables and sentences
show three `shares` of the time:
    compute    an action runs, and waits for no collective that it has called
    waits      else, while something is on its way: the rank is in a collective, receives a message,
               or has another lane at work; or, in a run that broke off, for what never came
    idle       the rest: the rank has nothing to do
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from .cost import COLLECTIVES
from .events import TRACE_RANKS, Alive, Memory, Scalar, Span, Transfer, event_of
from .files import MOST_BYTES, clean_json, clean_line, open_regular, write_whole
from .impossible import Impossible, refuse

MARK = "R"  # the kind of a span that only says that a round begins
CLOCKS = ("predicted", "modelled", "measured")
IN_TIME = itemgetter(
    4, 0, 1
)  # start, rank, lane: every event begins (rank, lane, kind, name, start)
MAGIC, VERSION = "bigtrain-trace", 1
ACTION = re.compile(
    r"(?<![^+])(\d{1,9})([A-Z])(\d{1,9})(?![^+])"
)  # in a span's name: "2F0", or several joined by "+"
CALLED = re.compile(
    r"(?:\d{1,9}[A-Z]\d{1,9}\+?)+\.\d"
)  # begins the name of a collective that an action calls: "1F0.2 layers.1.mlp"
GATHERED = re.compile(r"parameters of bucket \d+ of batch (\d{1,9})")  # after an update of shards


class Header(BaseModel):
    """The first line of a saved trace: all of a Trace but its events."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    clock: Literal[CLOCKS]
    unit: Annotated[str, Field(max_length=40)] = "slot"
    ticks_per_unit: Annotated[int, Field(ge=1, le=10**15)] = 1000
    ranks: Annotated[int, Field(ge=1, le=TRACE_RANKS)] = 1
    steps: Annotated[int, Field(ge=1, le=10**6)] = 1
    settings: dict[str, Any] = {}


class Shares(NamedTuple):
    """What ranks do with their time, by the definition of the module's docstring; together 1."""

    compute: float
    waits: float
    idle: float

    def __str__(self) -> str:
        return ", ".join(f"{name} {share:.1%}" for name, share in self._asdict().items())


def once(function: Callable) -> Callable:
    """Let a function of a trace, which never changes, look at each trace once."""

    @wraps(function)
    def found(trace, *more):
        known, key = vars(trace).setdefault("known", {}), (function, *more)
        if key not in known:
            known[key] = function(trace, *more)
        return known[key]

    return found


@dataclass(frozen=True)
class Trace:
    """Events in order (start, rank, lane, order of happening), and what is needed to read them."""

    events: tuple
    clock: str
    unit: str = "slot"
    ticks_per_unit: int = 1000
    ranks: int = 1
    steps: int = 1
    settings: dict = field(default_factory=dict)

    @classmethod
    def of(cls, events, clock: str, **header) -> "Trace":
        """A trace of events given in each lane's order."""
        # a stable sort: a lane keeps its order
        return cls(tuple(sorted(events, key=IN_TIME)), clock, **header)

    # -- choosing ----------------------------------------------------------------------------------

    def where(self, type=None, **fields) -> "Trace":
        """The trace of the events of this type whose named fields have these values: where(rank=0,
        kind="F").

        A transfer's rank is its receiver. Ask the whole trace, not a part, for idle shares and for
        bytes sent.
        """
        return replace(
            self,
            events=tuple(
                e
                for e in self.events
                if (type is None or isinstance(e, type))
                and all(getattr(e, name, None) == value for name, value in fields.items())
            ),
        )

    def spans(self, rank: int | None = None) -> list[Span]:
        return self._sorted_out[Span, rank]

    def transfers(self, rank: int | None = None) -> list[Transfer]:
        """Messages, those that `rank` sent where one is given."""
        return self._sorted_out[Transfer, rank]

    def boxes(self) -> list[Span]:
        """The work of each lane; of a lane that does none, the messages that it received, one after
        the other."""
        work = [span for span in self.spans() if span.kind != MARK]
        busy, found, free = {(span.rank, span.lane) for span in work}, [], defaultdict(int)
        for t in sorted(self.transfers(), key=lambda t: t.end):
            row = t.rank, t.lane
            if row not in busy:
                found.append(Span(*row, t.kind, t.name, max(t.start, free[row]), t.end))
                free[row] = t.end
        return sorted([*work, *found], key=IN_TIME) if found else work

    @cached_property
    def _sorted_out(self) -> dict[tuple, list]:
        """(type, rank) -> its events in order; a transfer is filed under the rank that sent it.
        (type, None) -> those of all ranks."""
        files = defaultdict(list)
        for e in self.events:
            kind = type(e)
            files[kind, e.src if kind is Transfer else e.rank].append(e)
            files[kind, None].append(e)
        return files

    def __iter__(self) -> Iterator:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    # -- time --------------------------------------------------------------------------------------

    def units(self, ticks: int) -> float:
        return ticks / self.ticks_per_unit

    def _begin(self) -> int:
        return min(
            (found[0].start for found in (self.spans(), self.transfers()) if found), default=0
        )

    @cached_property
    def _makespan_ticks(self) -> int:
        ends = (event.end for event in (*self.spans(), *self.transfers()))
        return max(ends, default=self._begin()) - self._begin()

    @cached_property
    def makespan(self) -> float:
        """First start to last end over all ranks."""
        return self.units(self._makespan_ticks)

    @cached_property
    def step_ends(self) -> tuple[int, ...]:
        """The tick at which each training step ends: the end of its last update, of all ranks, and
        of gathering what it made.

        An update that only some of the ranks have made, in a run that broke off, ends nothing. A
        trace without updates is divided into steps of equal length.
        """
        ends: dict[int, list[int]] = defaultdict(
            list
        )  # an update's micro-batch -> its end on each stage
        gathered: dict[int, int] = defaultdict(int)  # step -> when all ranks have its parameters
        for span in self.spans():
            if span.kind == "all_gather" and (found := GATHERED.fullmatch(span.name)):
                gathered[int(found[1])] = max(gathered[int(found[1])], span.end)
            if "U" in span.kind:
                for _, kind, micro_batch in ACTION.findall(span.name):
                    if kind == "U":
                        ends[int(micro_batch)].append(span.end)
        stages = max(map(len, ends.values()), default=0)
        whole = [max(ends[n]) for n in sorted(ends) if len(ends[n]) == stages]
        each = len(whole) // self.steps  # several updates a step, where none waits for the batch
        if self.settings.get("unfinished") and isinstance(
            size := self.settings.get("micro_batches"), int
        ):
            each = min(
                each, sum(n < size and len(ends[n]) == stages for n in ends)
            )  # the rest are of a step that broke off
        if each:
            latest = [*accumulate(whole, max)][each - 1 :: each]
            return tuple(max(latest[step], gathered[step]) for step in range(self.steps))
        begin, length = self._begin(), self._makespan_ticks
        return tuple(begin + length * (step + 1) // self.steps for step in range(self.steps))

    @property
    def step_time(self) -> float:
        """From the first start to the end of the last step, divided by the steps. What follows is
        no part of it."""
        return self.units(self.step_ends[-1] - self._begin()) / self.steps

    def busy(self, rank: int) -> float:
        """Time in which the rank's compute lane was occupied."""
        return self.units(sum(s.end - s.start for s in self.spans(rank) if s.lane == "compute"))

    def idle(self, rank: int) -> float:
        """Makespan minus busy time."""
        return self.makespan - self.busy(rank)

    def window(self, rank: int) -> float:
        """The rank's last end minus its first start."""
        spans = self.spans(rank)
        return self.units(max(s.end for s in spans) - min(s.start for s in spans)) if spans else 0.0

    def bubble(self, measure: str = "makespan") -> float:
        """Idle share, by one of the two measures of the module's docstring."""
        busy = [self.busy(rank) for rank in range(self.ranks)]
        if measure == "makespan":
            whole = self.makespan * self.ranks
            return (whole - sum(busy)) / whole if whole else 0.0
        if measure == "window":
            longest = max(self.window(rank) for rank in range(self.ranks))
            return (longest - max(busy)) / longest if longest else 0.0
        raise Impossible(f'There is no bubble measure {measure!r}: choose "makespan" or "window".')

    def shares(self, rank: int | None = None) -> Shares:
        """Compute, waits and idle as shares of the makespan, of a rank or of all together."""
        ranks = range(self.ranks) if rank is None else (rank,)
        whole = self._makespan_ticks * len(ranks)
        if not whole:
            return Shares(0.0, 0.0, 1.0)
        spells = [spell for each in ranks for spell in self.spells.get(each, ())]
        compute, waits = (
            sum(end - start for what, start, end in spells if what == kind)
            for kind in ("compute", "waits")
        )
        return Shares(compute / whole, waits / whole, (whole - compute - waits) / whole)

    def left(self, state: str) -> list[int]:
        """The ranks that the end of an unfinished run left so: "failed", "in" an action, or "waits"
        for a message that has not come. A file may say anything of them."""
        told = self.settings.get("unfinished")
        known = isinstance(told, dict) and isinstance(told.get(state), list)
        return [rank for rank in range(self.ranks) if known and rank in told[state]]

    @cached_property
    def spells(self) -> dict[int, list[tuple[str, int, int]]]:
        """Rank -> ("compute" or "waits", start, end), in order; in between it is idle."""
        changes, arrived, found = defaultdict(list), defaultdict(int), defaultdict(list)
        for e in self.spans():
            called = e.kind in COLLECTIVES and (e.lane == "compute" or CALLED.match(e.name))
            what = "called" if called else "compute" if e.lane == "compute" else "beside"
            changes[e.rank] += (e.start, what, 1), (e.end, what, -1)
        for e in sorted(self.transfers(), key=lambda e: (e.end, -e.start)):
            if e.kind not in COLLECTIVES:  # a port receives one message after the other
                start = max(e.start, arrived[e.rank, e.lane])
                changes[e.rank] += (start, "message", 1), (e.end, "message", -1)
                arrived[e.rank, e.lane] = e.end
        end = self._begin() + self._makespan_ticks
        for rank in self.left("waits"):  # for what never comes
            since = max(
                (tick for tick, what, _ in changes[rank] if what != "message"),
                default=self._begin(),
            )
            changes[rank] += (since, "message", 1), (end, "message", -1)
        for rank, own in changes.items():
            going, before = dict.fromkeys(("compute", "called", "beside", "message"), 0), 0
            for tick, what, more in sorted(own):
                if tick > before and any(going.values()):
                    spell = "compute" if going["compute"] and not going["called"] else "waits"
                    goes_on = found[rank] and found[rank][-1][::2] == (spell, before)
                    begin = found[rank].pop()[1] if goes_on else before
                    found[rank].append((spell, begin, tick))
                going[what] += more
                before = tick
        return found

    # -- memory, bytes, versions -------------------------------------------------------------------

    def levels(self, rank: int, kind: str | None = None) -> list[tuple[int, int]]:
        """(tick, bytes alive) whenever it changes, at action boundaries, of one kind or of all
        together."""
        level: dict[str, int] = defaultdict(int)
        changes = []
        events = [e for e in self._sorted_out[Memory, rank] if not e.inside]
        # What one action frees and takes at its end happens at once: one level for each (time,
        # action).
        for (start, _), group in groupby(events, key=lambda e: (e.start, e.name)):
            level.update((event.kind, event.bytes) for event in group)
            changes.append((start, level[kind] if kind else sum(level.values())))
        return changes

    def peak_bytes(self, rank: int, kind: str | None = None) -> int:
        """Most bytes alive together at any action boundary, of one kind or of all."""
        return max((level for _, level in self.levels(rank, kind)), default=0)

    def peak_live(self, rank: int) -> int:
        """Most forwards whose backward (its W, where it is split) is still to come, at any action
        boundary; chunks count each."""
        live = peak = 0
        for span in self.spans(rank):
            for _, kind, _ in ACTION.findall(span.name):
                live += (kind == "F") - (kind in "BW")
            peak = max(peak, live)
        return peak

    def bytes_sent(self, rank: int) -> int:
        """Bytes of all messages that the rank sent."""
        return sum(t.bytes for t in self.transfers(rank))

    def versions(self, rank: int) -> dict[str, int]:
        """Action -> the weight version (number of updates behind it) that it used, in order."""
        return {s.name: s.version for s in self.spans(rank) if s.version is not None}

    def at_peak(self, rank: int) -> list[Alive]:
        """The storages that made the rank's peak, largest first; [] where the run had no ledger."""
        return sorted(self._sorted_out[Alive, rank], key=lambda e: -e.bytes)

    # -- files -------------------------------------------------------------------------------------

    def header(self) -> dict:
        return {
            "clock": self.clock,
            "unit": self.unit,
            "ticks_per_unit": self.ticks_per_unit,
            "ranks": self.ranks,
            "steps": self.steps,
            "settings": self.settings,
        }

    def save(self, path) -> Path:
        """Write one JSON array a line, a header first; the file appears whole or not at all."""
        lines = [json.dumps([MAGIC, VERSION, self.header()])]
        lines += [json.dumps([type(e).__name__.lower(), *e]) for e in self.events]
        return write_whole(path, "\n".join(lines) + "\n")

    @classmethod
    def load(cls, path) -> "Trace":
        """Read what `save` wrote; Impossible where the file is not that, or of another version."""
        try:
            with open_regular(path) as file:
                header = cls._loaded_header(path, file.readline(MOST_BYTES))
                events = []
                while line := file.readline(MOST_BYTES):
                    events.append(event_of(clean_line(line), header.ranks))
        except Impossible:
            raise
        except OSError as error:
            raise Impossible(f"Cannot read the trace {path}: {error.strerror or error}.") from error
        except (ValueError, KeyError) as error:
            raise Impossible(f"{path} is cut off or damaged: save the trace again.") from error
        return cls(tuple(events), **dict(header))

    @classmethod
    def _loaded_header(cls, path, line: bytes) -> "Header":
        try:
            magic, version, header = json.loads(clean_json(line))
            if magic != MAGIC or type(version) is not int:
                raise ValueError(magic)
        except (ValueError, TypeError) as error:
            raise Impossible(
                f"{path} is not a trace: choose a file that Trace.save wrote."
            ) from error
        refuse(
            (
                version != VERSION,
                f"{path} has trace version {str(version)[:20]}, this library reads {VERSION}: save"
                " it again with this one.",
            )
        )
        return Header.model_validate_json(json.dumps(header))

    def to_chrome(self, path) -> Path:
        """Write Chrome's trace format, which Perfetto opens: spans, messages as flows, memory as
        counters."""
        us = (
            1e6 / self.ticks_per_unit if self.unit == "s" else 1000 / self.ticks_per_unit
        )  # a slot shows as 1 ms
        out = [
            {"ph": "M", "pid": r, "name": "process_name", "args": {"name": f"rank {r}"}}
            for r in range(self.ranks)
        ]
        for number, e in enumerate(self.events):
            at = {"pid": e.rank, "tid": e.lane, "name": e.name, "cat": e.kind, "ts": e.start * us}
            if isinstance(e, Span):
                out.append(
                    {**at, "ph": "X", "dur": (e.end - e.start) * us, "args": {"version": e.version}}
                )
            elif isinstance(e, Transfer):
                lane = {
                    "tid": "messages",
                    "id": number,
                    "args": {"bytes": e.bytes, "from": e.src, "to": e.rank},
                }
                out += [
                    {**at, **lane, "ph": "X", "dur": (e.end - e.start) * us},
                    {**at, **lane, "ph": "s", "pid": e.src, "tid": e.lane},
                    {**at, **lane, "ph": "f", "bp": "e", "tid": e.lane, "ts": e.end * us},
                ]
            elif isinstance(e, Memory):
                out.append({**at, "ph": "C", "name": "bytes " + e.kind, "args": {e.kind: e.bytes}})
            elif isinstance(e, Scalar) and math.isfinite(e.value):  # JSON has no nan
                out.append({**at, "ph": "C", "args": {e.name: e.value}})
        return write_whole(
            path, json.dumps({"traceEvents": out, "otherData": self.header()}, allow_nan=False)
        )
