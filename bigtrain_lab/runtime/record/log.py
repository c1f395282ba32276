"""The event log of one rank: one JSON array a line, whole lines only, readable while it grows and
after a crash.

    ["bigtrain-run", 2, {"rank": 0}]                                       the first line
    ["span", wall start, wall end, rank, lane, kind, name, start, end, version]
    ["transfer", wall start, wall end, wall bytes, rank, lane, kind, name, start, end, src, bytes]
    ["memory" | "scalar", wall, rank, lane, kind, name, start, bytes | value]
    ["histogram", wall, rank, lane, kind, name, start, [edge, ...], [count, ...]]
    ["levels", rank, lane, name, [kind, ...], [[wall, at, bytes, ...], ...]]
                                                                           what a ledger read inside
                                                                           an action, of each kind
                                                                           that changed
    ["alive", wall, rank, lane, start, [[kind, name, bytes, shape, dtype, module, made], ...]]
                                                                           the last such line holds
    ["@enter", wall, lane, name]  ["@send", wall, lane, dst, channel, label]
    ["@wait", wall, lane, src, channel, label, group, members]  ["@got", wall, lane, channel]
    ["@meet", wall, lane]  ["@met", wall, lane]  ["@finish", wall, lane]   marks, for the diagnosis
                                                                           only
    ["@begin", wall, lane, thread]  ["@idle", wall, lane, label]  ["@signal", wall, lane, label]
    ["@await", wall, lane, label, by]  ["@failed", wall, lane, sentence]
    ["@raised", wall, lane, type, message, victim, [file, line, function], traceback]
                                                                           how the program failed
    ["@done", wall, lane, CRC-32 of all bytes before]                      the last line

Each event holds both of its times: the
lane's (ticks; null when the modelled clock is off) and the wall's (ns since the run began, on one
clock for all ranks). A ledger's readings inside an action have their place on the lane by their
order, evenly between the action's start and end; a coarse one's, which tell of no whole level, are
on the wall's clock alone. A line is written by one system call before anything can block, so a rank
that is killed has lost nothing. A reader stops before an unfinished last line, and trusts none:
each is held to its types.
"""

import errno
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from zlib import crc32

from pydantic import ConfigDict, Field, TypeAdapter

from ...core import Alive, Memory, Span, refuse
from ...core.events import EVENTS, TRACE_RANKS, Bytes, Lane, Rank, Tick, fields_of, named, sound
from ...core.files import clean_json, clean_line, open_regular
from .kept import FORMAT

PASSING = (
    errno.ENOENT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
    errno.EIO,
)  # what another look may not meet
MAGIC = "bigtrain-run"
LONGEST_LINE = 4_000_000  # bytes
MOST_ITEMS = 4_000_000  # of all logs of a run together; it takes about a GB to hold so many
Channel = Annotated[int, Field(ge=-(2**62), le=2**62)]


class LogUnwritable(RuntimeError):
    """The run directory takes no more bytes."""


@contextmanager
def writing(path: Path):
    """Around what writes a file: LogUnwritable where it cannot be."""
    try:
        yield
    except OSError as error:
        raise LogUnwritable(
            f"Cannot write {path}: {error.strerror or error}; free some space or choose another"
            " directory."
        ) from error


class EventLog:
    """Appends lines. `note` keeps a line until the next `write`, which writes all of them at
    once."""

    def __init__(self, path: Path, rank: int):
        self.path, self._lock, self._lines, self._sum = path, threading.RLock(), [], 0
        with writing(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self.write(MAGIC, FORMAT, {"rank": rank})

    def note(self, *line) -> None:
        with self._lock:  # lanes have a thread each
            self._lines.append(line)

    def write(self, *line) -> None:
        """Write this line, and those noted before it, now."""
        with self._lock:
            lines, self._lines = [*self._lines, *([line] if line else [])], []
            data = "".join(
                json.dumps(line, separators=(",", ":")) + "\n" for line in lines
            ).encode()
            self._sum = crc32(data, self._sum)
            with writing(self.path):
                while data:
                    data = data[os.write(self._fd, data) :]

    def done(self, wall: int) -> None:
        """Write the last line of a rank that is done, with the checksum of what it has written."""
        with self._lock:  # no line comes between the sum and the last one
            self.write()
            self.write("@done", wall, "compute", self._sum)

    def close(self) -> None:
        """Take no more lines. What was noted and not written is lost."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1


class Logged(NamedTuple):
    """An event on both clocks; None where it is not on that clock."""

    modelled: object
    measured: object


class Mark(NamedTuple):
    what: str
    wall: int
    lane: str
    about: tuple


# What the wall's clock says of an event; what a line holds that tells of several moments or
# storages.
WALLS = {
    "span": ("start", "end"),
    "transfer": ("start", "end", "bytes"),
    **dict.fromkeys(("memory", "scalar", "histogram"), ("start",)),
}
STORAGE = tuple[str, str, Bytes, tuple[Bytes, ...], str, str, str]
READ = {
    "levels": (Rank, Lane, str, list[str], list[tuple[Tick | None, ...]]),
    "alive": (Tick, Rank, Lane, Tick | None, list[STORAGE]),
    "@enter": (Tick, Lane, str),
    "@send": (Tick, Lane, Rank, Channel, str),
    "@got": (Tick, Lane, Channel),
    "@finish": (Tick, Lane),
    "@meet": (Tick, Lane),
    "@met": (Tick, Lane),
    "@wait": (Tick, Lane, Rank | None, Channel, str, str, tuple[Rank, ...]),
    "@begin": (Tick, Lane, Bytes),
    "@idle": (Tick, Lane, str),
    "@signal": (Tick, Lane, str),
    "@await": (Tick, Lane, str, Lane),
    "@failed": (Tick, Lane, str),
    "@raised": (Tick, Lane, str, str, bool, tuple[str, Bytes, str] | None, str),
    "@done": (Tick, Lane, Bytes),
}


@cache
def types_of(what: str) -> TypeAdapter:
    """Return what holds a line to its types: (what, value, ...). KeyError where there is no such
    line."""
    if what in WALLS:
        fields = fields_of(EVENTS[what], timed=False)
        fields.pop("inside", None)
        types = (*[Tick, Tick, Bytes][: len(WALLS[what])], *fields.values())
    else:
        types = READ[what]
    return TypeAdapter(tuple[(Literal[what], *types)], config=ConfigDict(strict=True))


def read(line: bytes, rank: int | None = None, ranks: int = TRACE_RANKS) -> list:
    """The Logged events, or the Mark, of one line in the log of this rank (None: of any).
    ValueError or KeyError where it is not one."""
    line = clean_line(line)
    found = list(items(*types_of(named(line)).validate_json(line)))
    for item in found:
        if isinstance(item, Mark):
            refuse(
                (
                    any(peer >= ranks for peer in peers(item)),
                    "it is of a rank that the run does not have",
                ),
                error=ValueError,
            )
        else:
            of = {sound(event, ranks).rank for event in item if event is not None}
            refuse((rank is not None and of - {rank}, "it is of another rank"), error=ValueError)
    return found


def peers(mark: Mark) -> list[int]:
    """The other ranks that a mark speaks of."""
    if mark.what not in ("send", "wait"):
        return []
    peer, _, _, *group = mark.about
    return [*([] if peer is None else [peer]), *(group[1] if group else ())]


def items(what: str, *values) -> Iterator:
    """The events or the mark of a line's values, which are of their types."""
    if what.startswith("@"):
        wall, lane, *about = values
        yield Mark(what[1:], wall, lane, tuple(about))
    elif what in WALLS:
        walls = dict(zip(WALLS[what], values))
        yield on_both(EVENTS[what](*values[len(walls) :]), **walls)
    elif what == "levels":
        yield from levels(*values)
    elif what == "alive":
        wall, rank, lane, at, rows = values
        yield from (
            on_both(Alive(rank, lane, kind, name, at, *rest), start=wall)
            for kind, name, *rest in rows
        )


def on_both(event, **walls) -> Logged:
    """An event of a lane's clock, which may be off, and what the wall's clock says of it."""
    return Logged(event if event.start is not None else None, event._replace(**walls))


def levels(rank: int, lane: str, name: str, kinds: list[str], rows: list[list]) -> Iterator[Logged]:
    """A ledger's readings inside an action, on both clocks."""
    refuse(
        (
            any(len(row) != 2 + len(kinds) or row[0] is None or None in row[2:] for row in rows),
            "a moment has its time, its place and the bytes of each kind",
        ),
        error=ValueError,
    )
    yield from (
        on_both(Memory(rank, lane, kind, name, at, size, True), start=wall)
        for wall, at, kind, size in changed(kinds, rows)
    )


def changed(kinds: Sequence[str], rows: Sequence[Sequence]) -> Iterator[tuple]:
    """(wall, at, kind, bytes) of each moment's kinds that changed, and of all where it shares its
    time with another."""
    last, moments = [None] * len(kinds), Counter(at for _, at, *_ in rows)
    for wall, at, *now in rows:
        for kind, size, was in zip(kinds, now, last):
            if size != was or moments[at] > 1:
                yield wall, at, kind, size
        last = now


class Tail:
    """Reads a log while another process writes it; opens the file only to read on, so it holds no
    handle.

    `rank`: whose it must be, of `ranks`. `state`: "missing" until it is there, "cut off" until its
    end has come, then "done", or "changed" where the checksum there is that of others; "damaged": a
    line is not one of that rank's, and what came before still counts, as where a disk lost a block;
    "too long": it has more than `most` items.
    """

    def __init__(
        self, path: Path, rank: int | None = None, ranks: int = TRACE_RANKS, most: int = MOST_ITEMS
    ):
        self.path, self._rank, self._ranks, self._left = Path(path), rank, ranks, most
        self.offset, self._sum, self.state = 0, 0, "missing"

    def new(self) -> list:
        """What whole lines were added since the last call: Logged and Mark values, in order."""
        found = []
        try:
            for line in self._lines():
                if self.offset:
                    found += self._read(line)
                else:
                    self._refuse_other(line)
                self.offset, self._sum = self.offset + len(line), crc32(line, self._sum)
        except OSError as error:
            self.state = self.state if error.errno in PASSING else "damaged"
        except (ValueError, KeyError, TypeError):
            self.state = "damaged"
        return found

    def _lines(self) -> Iterator[bytes]:
        size = self.path.stat().st_size
        self.state = "cut off" if self.state == "missing" else self.state
        if self.state == "damaged" or size <= self.offset:
            return
        with open_regular(self.path) as file:
            file.seek(self.offset)
            line = b""
            while self._left >= 0 and (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
                yield line
            if len(line) == LONGEST_LINE:  # it has no end: one that is being written is shorter
                self.state = "damaged"

    def _read(self, line: bytes) -> list:
        found = read(line, self._rank, self._ranks)
        self._left -= len(found)
        if self.state != "cut off":  # nothing comes after the last line
            self.state = "changed"
        elif found and isinstance(last := found[-1], Mark) and last.what == "done":
            self.state = "done" if last.about == (self._sum,) else "changed"
        if self._left < 0:
            self.state = "too long"
        return found

    def _refuse_other(self, line: bytes) -> None:
        """ValueError where it is not the first line of this rank's log."""
        *of, whose = json.loads(clean_json(line))
        refuse(
            (
                of != [MAGIC, FORMAT] or self._rank is not None and whose != {"rank": self._rank},
                "it is the log of another rank, or none of this version",
            ),
            error=ValueError,
        )


def tells_of_peak(item) -> bool:
    return isinstance(item, Logged) and isinstance(item.measured, Alive)


LOST = {
    "damaged": "is damaged",
    "changed": "was changed after its run",
    "missing": "is missing",
    "too long": "is too long to be read",
    "cut off": "is cut off",
}


class Log(Tail):
    """A log that keeps its `items`; of what was alive at its peaks, the last one's alone."""

    def __init__(self, *of):
        super().__init__(*of)
        self.items, self._reading = [], threading.Lock()

    def read(self) -> "Log":
        """As far as it goes now."""
        with self._reading:
            items = self.items + self.new()
            last = next(
                (item.measured.start for item in reversed(items) if tells_of_peak(item)), None
            )
            self.items = [i for i in items if not tells_of_peak(i) or i.measured.start == last]
        return self

    def lost(self, done: bool) -> str:
        """What it has lost, in words; "" where it is whole. What comes before a lost line still
        counts, and nothing after it. The log of a rank that was `done` ends with "@done"."""
        if self.state not in LOST or not done and self.state in ("cut off", "missing"):
            return ""
        if self.state in ("missing", "changed"):
            return LOST[self.state]
        events = (getattr(item, "measured", None) for item in reversed(self.items))
        last = next((f"after {event.name}" for event in events if isinstance(event, Span)), "")
        return f"{LOST[self.state]} {last or 'before its first step'}"
