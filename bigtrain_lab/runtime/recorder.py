"""The recorder of a rank ties clock, log and meter together: groups and spans tell it what happens, and only it writes."""

import random
import time
from contextlib import contextmanager, nullcontext
from math import isfinite, nan

from ..explain import NOT_FINITE
from ..schedule import Action, kind_of, name_of
from .clock import Clock
from .log import EventLog
from .meter import Meter


class Recorder:
    """`jitter_s`: sleep a random time, seeded, of up to this before each operation; modelled times must not notice."""

    def __init__(self, rank: int, clock: Clock, log: EventLog, meter: Meter | None = None, jitter_s: float = 0.0, seed: int = 0):
        self.rank, self.clock, self.log, self.meter = rank, clock, log, meter
        self._jitter_s, self._random = jitter_s, random.Random(f"jitter {seed} {rank}")
        self._inside, self.strike = None, None  # strike: a fault on purpose (faults.py)
        self._not_finite: set[str] = set()  # what was, of "sent" and "reported"

    def jitter(self) -> None:
        if self._jitter_s:
            time.sleep(self._random.random() * self._jitter_s)

    # -- work -----------------------------------------------------------------------------------------------

    @contextmanager
    def span(self, step, version: int | None = None, lane: str = "compute"):
        """Work that occupies the lane: a step (tuple of actions), one action, or a name for work outside a schedule."""
        if isinstance(step, str):
            kind = name = step
            step = (Action(step, 0, 0),)
        else:
            step = (step,) if isinstance(step, Action) else tuple(step)
            kind, name = kind_of(step), name_of(step)
        if self._inside:
            raise RuntimeError(f"Span {name} begins inside span {self._inside}: end the first before.")
        self.jitter()
        clock, log = self.clock, self.log
        log.write("@enter", clock.wall(), name)
        self._inside = name
        try:
            with self.meter.begin() if self.meter else nullcontext():
                wall_start = clock.wall()
                if self.strike:
                    self.strike.begin(name)
                yield
                if self.strike:
                    self.strike.end(clock.wall() - wall_start)
                wall_end = clock.wall()
        finally:
            self._inside = None
        start, end = clock.compute(lane, step, self.rank)
        if self.meter and (readings := self.meter.end()):
            log.note("inside", self.rank, lane, "activations", name, readings)
        log.note("span", wall_start, wall_end, self.rank, lane, kind, name, start, end, version)
        self._memory(name, wall_end, end, lane)
        log.write()

    def watch(self, holdings) -> None:
        """What is there before the first span."""
        if self.strike:
            self.strike.holdings = holdings
        if self.meter:
            self.meter.holdings = holdings
            self._memory("start", self.clock.wall(), self.clock.now("compute"), "compute")
            self.log.write()

    def _memory(self, name: str, wall: int, at: int | None, lane: str) -> None:
        for kind, size in self.meter.changes() if self.meter else ():
            self.log.note("memory", wall, self.rank, lane, kind, name, at, size)

    def scalar(self, name: str, value: float, lane: str = "compute") -> None:
        self.log.note("scalar", self.clock.wall(), self.rank, lane, "scalar", name, self.clock.now(lane), value)
        if not isfinite(value):
            self.not_finite("reported", f"{name} in {self._inside or 'the program'}", lane)
        if not self._inside:  # a span writes at its end
            self.log.write()

    def all_finite(self, how: str) -> bool:
        """Whether everything was finite so far, of what this rank has "sent" or "reported"."""
        return how not in self._not_finite

    def not_finite(self, how: str, what: str, lane: str) -> None:
        """Note the first value that this rank sent or reported which is not finite: a NaN began at the rank that was first."""
        if self.all_finite(how):
            self._not_finite.add(how)
            self.log.note("scalar", self.clock.wall(), self.rank, lane, NOT_FINITE, what, self.clock.now(lane), nan)

    # -- messages -------------------------------------------------------------------------------------------

    def sending(self, dst: int, channel: int, label: str) -> None:
        self.log.note("@send", self.clock.wall(), dst, channel, label)  # written before this rank next blocks or works

    @contextmanager
    def waiting(self, src: int | None, channel: int, label: str, *group):
        """Around a call that may block, for a message from `src`, or (None) in a collective of a group: its name and members."""
        self.log.write("@wait", self.clock.wall(), src, channel, label, *group)
        yield
        self.log.write("@got", self.clock.wall(), channel)
