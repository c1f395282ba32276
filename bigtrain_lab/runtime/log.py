"""The event log of one rank: one JSON array a line, whole lines only, readable while it grows and after a crash.

    ["bigtrain-run", 1, {"rank": 0}]                                       the first line
    ["span", wall start, wall end, rank, lane, kind, name, start, end, version]
    ["transfer", wall start, wall end, wall bytes, rank, lane, kind, name, start, end, src, bytes]
    ["memory" | "scalar", wall, rank, lane, kind, name, start, bytes | value]
    ["histogram", wall, rank, lane, kind, name, start, [edge, ...], [count, ...]]
    ["inside", rank, lane, kind, name, [[wall, bytes], ...]]               what a meter read of one kind inside an action
    ["levels", rank, lane, name, [kind, ...], [[wall, at, bytes, ...], ...]]    what a ledger read there, of each kind that changed
    ["alive", wall, rank, lane, start, [[kind, name, bytes, shape, dtype, module, made], ...]]    the last such line holds
    ["@enter", wall, name]  ["@send", wall, dst, channel, label]  ["@wait", wall, src, channel, label, group?, members?]  ["@got", wall, channel]
    ["@meet", wall]  ["@met", wall]  ["@finish", wall]  ["@done", wall]     marks, for the diagnosis only

Each event holds both of its times: the lane's (ticks; null when the modelled clock is off) and the wall's (ns since
the run began, on one clock for all ranks). A ledger's readings inside an action have their place on the lane by their order,
evenly between the action's start and end; a meter's, which tell of no whole level, are on the wall's clock alone. A line is written by one system call before anything can block, so a rank
that is killed has lost nothing. A reader stops before an unfinished last line.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..core import Alive, Impossible, Memory, Span, Transfer
from ..core.events import event_of

MAGIC, VERSION = "bigtrain-run", 1


class LogUnwritable(RuntimeError):
    """The run directory takes no more bytes."""


class EventLog:
    """Appends lines. `note` keeps a line until the next `write`, which writes all of them at once."""

    def __init__(self, path: Path, rank: int):
        self.path, self._lock, self._lines = path, threading.Lock(), []
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        except OSError as error:
            raise LogUnwritable(unwritable(path, error)) from error
        self.write(MAGIC, VERSION, {"rank": rank})

    def note(self, *line) -> None:
        self._lines.append(line)

    def write(self, *line) -> None:
        """Write this line, and those noted before it, now."""
        with self._lock:
            lines, self._lines = [*self._lines, *([line] if line else [])], []
            data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
            try:
                while data:
                    data = data[os.write(self._fd, data):]
            except OSError as error:
                raise LogUnwritable(unwritable(self.path, error)) from error

    def close(self) -> None:
        """Take no more lines. What was noted and not written is lost."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1


def unwritable(path, error: OSError) -> str:
    return f"Cannot write {path}: {error.strerror or error}; free some space or choose another directory."


class Logged(NamedTuple):
    """An event on both clocks; None where it is not on that clock."""

    modelled: object
    measured: object


class Mark(NamedTuple):
    what: str
    wall: int
    about: tuple = ()


def read(line: list) -> list:
    """The Logged events, or the Mark, of one line."""
    what, *values = line
    if what.startswith("@"):
        return [Mark(what[1:], values[0], tuple(values[1:]))]
    if what == "span":
        wall_start, wall_end, *fields = values
        span = Span(*fields)
        return [Logged(span if span.start is not None else None, span._replace(start=wall_start, end=wall_end))]
    if what == "transfer":
        wall_start, wall_end, wall_bytes, *fields = values
        transfer = Transfer(*fields)
        measured = transfer._replace(start=wall_start, end=wall_end, bytes=wall_bytes)
        return [Logged(transfer if transfer.start is not None else None, measured)]
    if what == "inside":
        *fields, readings = values
        return [Logged(None, Memory(*fields, wall, size, True)) for wall, size in readings]
    if what == "levels":
        return list(levels(*values))
    if what == "alive":
        wall, rank, lane, at, rows = values
        alive = [Alive(rank, lane, kind, name, wall, size, tuple(shape), *rest) for kind, name, size, shape, *rest in rows]
        return [Logged(event._replace(start=at) if at is not None else None, event) for event in alive]
    wall, *fields = values
    event = event_of(what, fields)
    return [Logged(event if event.start is not None else None, event._replace(start=wall))]


def levels(rank: int, lane: str, name: str, kinds: list[str], rows: list[list]) -> Iterator[Logged]:
    """A ledger's readings inside an action: of each moment the kinds that changed, and all where it shares its time with another."""
    last, moments = [None] * len(kinds), Counter(at for _, at, *_ in rows)
    for wall, at, *now in rows:
        for kind, size, was in zip(kinds, now, last):
            if size != was or moments[at] > 1:
                event = Memory(rank, lane, kind, name, wall, size, True)
                yield Logged(event._replace(start=at) if at is not None else None, event)
        last = now


class Tail:
    """Reads a log while another process writes it; opens the file only to read on, so it holds no handle."""

    def __init__(self, path: Path):
        self.path, self.offset, self.damaged, self._headed = Path(path), 0, False, False

    def new(self) -> list:
        """What whole lines were added since the last call: Logged and Mark values, in order."""
        try:
            if self.damaged or self.path.stat().st_size <= self.offset:
                return []
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        data = data[:data.rfind(b"\n") + 1]
        self.offset += len(data)
        found = []
        for text in data.splitlines():
            try:
                line = json.loads(text)
                if self._headed:
                    found += read(line)
                    continue
            except (ValueError, TypeError, KeyError, IndexError):  # a disk that lost a block: what came before still counts
                self.damaged = True
                break
            self._refuse_other(line)
            self._headed = True
        return found

    def _refuse_other(self, line) -> None:
        if not (isinstance(line, list) and len(line) == 3 and line[0] == MAGIC):
            raise Impossible(f"{self.path} is not the event log of a run: choose a run directory.")
        if line[1] != VERSION:
            raise Impossible(f"{self.path.parent} was written by run version {line[1]}, this library reads {VERSION}: run it again.")


def without_earlier_peaks(items: list) -> list:
    """Of one rank's log: what was alive at its last peak only."""
    peaks = [item.measured.start for item in items if is_alive(item)]
    return [item for item in items if not is_alive(item) or item.measured.start == peaks[-1]]


def is_alive(item) -> bool:
    return isinstance(item, Logged) and isinstance(item.measured, Alive)


class Log(NamedTuple):
    """All of a log: its values up to the first damage, and how it ends: "done", "cut off", "damaged", or "missing"."""

    items: list
    state: str

    @classmethod
    def read(cls, path: Path) -> "Log":
        tail = Tail(path)
        items = without_earlier_peaks(tail.new())
        if tail.damaged:
            return cls(items, "damaged")
        if items and isinstance(items[-1], Mark) and items[-1].what == "done":
            return cls(items, "done")
        return cls(items, "cut off" if path.exists() else "missing")
