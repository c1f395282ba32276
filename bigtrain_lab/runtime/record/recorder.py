"""The recorder of a rank ties clock, log and ledger together: groups and spans tell it what
happens, and only it writes.

Each lane of the rank has a thread of its own (lanes.py), one open span and one clock. Memory is
read, and a fault strikes, in the spans of the lane "compute" alone: what other lanes keep is part
of what the program says it holds.
"""

import random
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import isfinite, nan

from torch import Tensor

from ...core import Alive, Impossible, refuse
from ...core.peak import placed
from ...order.explain import NOT_FINITE
from ...order.plan import call_name, called
from ...order.schedule import Action, kind_of, name_of
from ..memory.balance import Heights, read, together, with_units
from ..memory.ledger import Ledger
from ..talk.clock import Clock
from .exponents import exponents
from .log import EventLog

EVERY_NS = 10**9  # between two lists of what was alive at the peak: they are long


@dataclass
class _Open:
    """A lane's open span. `planned`: collectives that its plan calls inside (None: none, or no
    plan); `called`: those that it has called. `end`: when it ends, once something was launched in
    it; `later`: what is launched then."""

    name: str
    step: tuple
    beside: bool
    planned: int | None
    called: int = 0
    end: int | None = None
    later: list = field(default_factory=list)


class Recorder:
    """`jitter_s`: sleep a random time, seeded, of up to this before each operation; modelled times
    must not notice."""

    records = True

    def __init__(
        self,
        rank: int,
        clock: Clock,
        log: EventLog,
        ledger: Ledger,
        jitter_s: float = 0.0,
        seed: int = 0,
        ranks: int = 1,
    ):
        self.rank, self.clock, self.log, self.ledger = rank, clock, log, ledger
        self.note, self.write = log.note, log.write
        self._jitter_s, self._random = jitter_s, random.Random(f"jitter {seed} {rank}")
        self._thread, self._lanes = threading.local(), {"compute"}  # its lane; all lanes
        self._open: dict[str, _Open] = {}  # lane -> its open span
        self.strike = None  # a fault on purpose (faults.py)
        self._heights = Heights(ranks)
        self._ticks: dict[
            int, int | None
        ] = {}  # wall -> lane's time of what a ledger read inside the last action
        self._peak: tuple = (
            0,
            None,
            "compute",
        )  # bytes, lane's time and lane of the highest moment so far
        self._told = (0, 0)  # bytes of the peak whose storages were written, and when
        self._not_finite: set[str] = set()  # what was, of "sent" and "reported"

    @property
    def lane(self) -> str:
        """The lane of the thread that asks."""
        return getattr(self._thread, "lane", "compute")

    def enter(self, lane: str) -> None:
        """This thread is the lane's from now on."""
        self._thread.lane = lane

    def refuse_other_lane(self, lane: str, what) -> None:
        """Impossible where the thread that asks is another lane's."""
        if self.lane != lane:
            raise Impossible(
                f"Rank {self.rank} calls {what or 'a message'} of lane {lane} from lane"
                f" {self.lane}: let a lane's group be used by what is launched on it, and no"
                " other."
            )

    def refuse_taken(self, lane: str) -> None:
        """Impossible where the rank has a lane of this name."""
        refuse(
            (
                lane in self._lanes,
                f"Rank {self.rank} has a lane {lane} of another group: "
                "give this one a name of its own.",
            )
        )
        self._lanes.add(lane)

    def mark(self, what: str, *about, lane: str | None = None, now: bool = True) -> None:
        """Write what a lane (this thread's) is about to do, for the diagnosis; or note it,
        before the rank next blocks or works."""
        (self.write if now else self.note)("@" + what, self.clock.wall(), lane or self.lane, *about)

    def jitter(self) -> None:
        if self._jitter_s:
            time.sleep(self._random.random() * self._jitter_s)

    # -- work --------------------------------------------------------------------------------------

    def issue(self) -> int | None:
        """The time at which this thread's lane launches something now: within a span it leaves at
        the span's end, as its messages do, since a plan knows whole actions."""
        now = self.clock.now(lane := self.lane)
        if now is not None and (opened := self._open.get(lane)):
            opened.end = now = now + self.clock.cost.duration(opened.step, self.rank, opened.beside)
        return now

    def later(self, issue: Callable[[], None]) -> bool:
        """Where an action is open that calls collectives, others decide when it ends: call this
        then. False where none is."""
        opened = self._open.get("compute")
        if self.lane != "compute" or not opened or opened.planned is None:
            return False
        opened.later.append(issue)
        return True

    def call(self, lane: str, kind: str, size_bytes: int, name: str) -> str | None:
        """The open action calls a collective, which is issued on `lane` when the action's work up
        to there is done. Returns its name in the trace; None where no action is open that may call
        one. Impossible where the Cost expects another.
        """
        clock, opened = self.clock, self._open.get("compute")
        if self.lane != "compute" or not opened or clock.modelled and not clock.cost.inside:
            return None
        step, number = opened.step, opened.called
        opened.called += 1
        if clock.modelled:
            own, planned = (
                (kind, size_bytes, name),
                [each[1:] for each in called(step, clock.cost.inside)[number : number + 1]],
            )
            if [own] != planned:
                instead = "{} of {} bytes ({})".format(*planned[0]) if planned else "no more"
                raise Impossible(
                    f"Rank {self.rank} calls {kind} of {size_bytes} bytes ({name}) in"
                    f" {name_of(step)}, where its plan has {instead}: predict the model that runs."
                )
            _, now = clock.compute("compute", step, self.rank, opened.beside, number)
            clock.wait(lane, now)
        return call_name(step, number, name)

    @contextmanager
    def span(self, step, version: int | None = None, lane: str | None = None, beside: bool = False):
        """Work that occupies the lane (this thread's): a step (tuple of actions), one action, or
        a name for work outside a schedule."""
        if isinstance(step, str):
            kind = name = step
            step = (Action(step, 0, 0),)
        else:
            step = (step,) if isinstance(step, Action) else tuple(step)
            kind, name = kind_of(step), name_of(step)
        if version is not None and type(version) is not int:
            raise TypeError(
                f"The weight version of span {name} is {version!r}: give a whole number, or none."
            )
        lane = lane or self.lane
        if lane in self._open:
            raise RuntimeError(
                f"Span {name} begins inside span {self._open[lane].name}: end the first before."
            )
        main, clock = lane == "compute", self.clock
        strike, planned = (self.strike, self._planned(step, beside)) if main else (None, None)
        self.jitter()
        self.mark("enter", name, lane=lane)
        opened = self._open[lane] = _Open(name, step, beside, planned)
        began = clock.now(lane)
        try:
            if main:
                self.ledger.begin(name)
            wall_start = clock.wall()
            if strike:
                strike.begin(name)
            yield
            if strike:
                strike.end(clock.wall() - wall_start)
            wall_end = clock.wall()
        finally:
            del self._open[lane]
        refuse(
            (
                planned not in (None, opened.called),
                f"Rank {self.rank} called {opened.called} collectives in {name}, and its plan has"
                f" {planned}: predict the model that runs.",
            )
        )
        start, end = clock.compute(lane, step, self.rank, beside, planned)
        start = start if planned is None else began
        for issue in opened.later:
            issue()
        refuse(
            (
                opened.end not in (None, end),
                f"Rank {self.rank} launches something in span {name} and waits there: what is"
                " launched in a span starts at its end, so wait after the span.",
            )
        )
        if main:
            self._within(name, lane, start, end)
        self.note("span", wall_start, wall_end, self.rank, lane, kind, name, start, end, version)
        if main:
            self._memory(name, wall_end, end, lane)
        self.write()
        if main:
            self.ledger.refuse_too_much(name)

    def _planned(self, step: tuple, beside: bool) -> int | None:
        """How many collectives a step's plan calls inside it; None where there is none, or no
        plan."""
        parts = self.clock.cost.parts(step, self.rank, beside) if self.clock.modelled else []
        return len(parts) - 1 if len(parts) > 1 else None

    def _within(self, name: str, lane: str, start: int | None, end: int | None) -> None:
        """Note what was read inside the action that has just ended. What a coarse ledger read is
        no whole level, and has no place on a modelled clock."""
        ledger = self.ledger
        kinds, walls, found = ledger.end()
        kinds, found = with_units(kinds, found, ledger.before, ledger.told)
        told = read(found)
        others = sum(size for kind, size in ledger.before.items() if kind not in kinds)
        if not self._heights.tells(max(map(sum, found), default=0) + others, len(told)):
            told = []
        on_lane = self.clock.modelled and not ledger.coarse
        ticks = placed(start, end, len(told)) if on_lane else [None] * len(told)
        self._ticks = {walls[at]: tick for at, tick in zip(told, ticks)}
        rows = [[walls[at], tick, *found[at]] for at, tick in zip(told, ticks)]
        self.note("levels", self.rank, lane, name, kinds, rows)

    def watch(self, holdings) -> None:
        """What is there before the first span."""
        if self.strike:
            self.strike.holdings = holdings
        self.ledger.holdings = holdings
        self._memory("start", self.clock.wall(), self.clock.now("compute"), "compute")
        self.write()
        self.ledger.refuse_too_much("the start")

    def _memory(self, name: str, wall: int, at: int | None, lane: str) -> None:
        for kind, size in self.ledger.changes(look=name == "start"):
            self.note("memory", wall, self.rank, lane, kind, name, at, size)
        if name != "start" and (highest := self.ledger.highest_bytes) > self._peak[0]:
            # set-up is no step
            self._peak = highest, self._ticks.get(self.ledger.highest_wall, at), lane
        if self._peak[0] > self._told[0] and wall - self._told[1] > EVERY_NS:
            self._alive(wall, self.ledger.at_peak())

    def _alive(self, wall: int, alive: list[Alive]) -> None:
        """Write who was alive at the highest moment so far; a reader forgets what was written so
        before."""
        highest, at, lane = self._peak
        self._told = highest, wall
        rows = together(alive)
        self.note(
            "alive",
            rows[0].start,
            self.rank,
            lane,
            at,
            [[row.kind, row.name, *row[5:]] for row in rows],
        )

    def finish(self) -> None:
        """When the program has ended or failed: who was alive at its peak, if the ledger knows and
        it was not told yet. The peak of one that ran out of memory is what it would have held."""
        self.ledger.changes()  # since the last action
        highest = sum(a.bytes for a in self.ledger.refused) or self.ledger.highest_bytes
        if highest > self._told[0]:
            if highest > self._peak[0]:
                self._peak = highest, self.clock.now("compute"), "compute"
            self._alive(self.clock.wall(), self.ledger.refused or self.ledger.at_peak())
            self.write()

    def scalar(self, name: str, value: float) -> None:
        lane, value = self.lane, float(value)
        self.note(
            "scalar",
            self.clock.wall(),
            self.rank,
            lane,
            "scalar",
            name,
            self.clock.now(lane),
            value,
        )
        where = self._open[lane].name if lane in self._open else "the program"
        self.look_at("reported", f"{name} in {where}", lane, partial(isfinite, value))
        if lane not in self._open:  # a span writes at its end
            self.write()

    def aside(self):
        """A context for work that no memory is to be counted of."""
        return self.ledger.aside()

    def histogram(self, name: str, tensor: Tensor) -> None:
        lane = self.lane
        with self.aside():
            counted = exponents(tensor.as_subclass(Tensor))  # of this rank alone, also of a piece
        self.note(
            "histogram",
            self.clock.wall(),
            *counted.histogram(self.rank, lane, name, self.clock.now(lane)),
        )
        if lane not in self._open:
            self.write()

    def look_at(self, how: str, what: str, lane: str, finite: Callable[[], bool]) -> None:
        """Note the first value that this rank "sent" or "reported" which is not finite: a NaN began
        at the rank that was first. No further one is looked at."""
        if how not in self._not_finite and not finite():
            self._not_finite.add(how)
            self.note(
                "scalar",
                self.clock.wall(),
                self.rank,
                lane,
                NOT_FINITE,
                what,
                self.clock.now(lane),
                nan,
            )
