"""A run is a directory: its settings, one event log a rank, what was printed, how each rank ended,
the results.

Everything a Run answers is read from there, so the notebook that started it, another one, and one
that opens it next year see the same; a crashed run keeps all it wrote.

    settings.json  events-<rank>.jsonl (log.py)  rank-<rank>.log  stacks-<rank>.txt
    environment.json   result-<rank>.npz   end.json (while it runs: end.reserve, its room on the
                                           disk)
    pulse-<rank>.txt   stacks              under torchrun (lookout.py)
"""

import os
import time
import warnings
from collections.abc import Iterator
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np

from ...core import Span, Trace, refuse
from ...core.files import open_regular
from ...core.trace import ACTION
from ..failure.wait_graph import RankState
from ..process.end import End, within
from ..process.pulse import Pulse
from . import results
from .kept import read_settings, returned
from .log import MOST_ITEMS, Log, Tail

POLL_S = 0.03
PRINTED_BYTES = 16_000_000  # the last ones of what a rank printed


class RankFailed(RuntimeError):
    """A rank failed, was killed, exited or hung. The message says which, where, why, and what the
    others did."""


class Run:
    """`state` is "running", "done", "failed" or "stopped"; `diagnosis` says why in the last two
    cases."""

    directory: Path
    settings: dict

    def __init__(self, directory, watch=None):
        self.directory = Path(directory)
        self._watch = watch  # of the processes; None where they are not ours
        self.settings = read_settings(self.directory)
        self._kept = [Log(*of) for of in self._asked()]

    @classmethod
    def open(cls, directory) -> "Run":
        """A run from its directory, without its processes, also while another one goes on with it.
        Impossible where that is no run, or of another version."""
        return cls(directory)

    def __repr__(self) -> str:
        return f"<Run {self.directory}: {self.state}>"

    # -- the end -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._end.state

    @property
    def diagnosis(self) -> str | None:
        """Why the run failed or stopped; None while it runs and when it is done."""
        return self._end.diagnosis

    @property
    def _end(self) -> End:
        if self._watch:
            return self._watch.end
        # asked first: it writes the end before it ends
        running = Pulse.of(self.settings["launcher"]).is_alive()
        if end := End.noted(self.directory):
            return end
        if running:
            return End("running")
        if all(returned(self.directory, rank) for rank in range(self.ranks)):
            return End("done")
        return End("stopped", "Whatever started this run ended before its ranks did.")

    @property
    def damage(self) -> str | None:
        """What the directory of a run that has ended has lost since, in a sentence; None where it
        is whole."""
        if (state := self.state) == "running":
            return None
        told = [
            f"the log of rank {rank} {words}"
            for rank, log in enumerate(self._logs())
            if (words := log.lost(state == "done"))
        ]
        if state == "done":
            told += [
                f"the result of rank {rank} is missing"
                for rank in range(self.ranks)
                if not returned(self.directory, rank)
            ]
            if not End.noted(self.directory):
                told.append("the note of its end (end.json) is missing or damaged")
        text = " and ".join(filter(None, [", ".join(told[:-1]), *told[-1:]]))
        return f"{text[0].upper()}{text[1:]}: what is whole is shown." if told else None

    @property
    def waits(self) -> tuple[RankState, ...]:
        """What each rank was at when the run failed: who waited for whom, and where in its program;
        () where it did not."""
        return self._end.waits

    def wait(self, timeout: float | None = None) -> Trace:
        """Return the trace once all ranks are done: the modelled one, the measured one where that
        clock is off.

        RankFailed, with the diagnosis, where a rank failed or the run was stopped; TimeoutError
        after `timeout` seconds, and the run goes on. An interrupt stops the ranks, unless the run
        was opened.
        """
        try:
            if not self._finished(timeout):
                raise TimeoutError(
                    f"The run is not done after {timeout:g} s; it goes on. Its directory is"
                    f" {self.directory}."
                )
        except KeyboardInterrupt:
            self.stop()
            raise
        if self.state != "done":
            raise RankFailed(self.diagnosis)
        return self.trace()

    def _finished(self, timeout: float | None) -> bool:
        """Wait for the end, which another process may bring; False where it has not come in
        time."""
        if self._watch:
            return self._watch.finished.wait(timeout)
        return within(inf if timeout is None else timeout, lambda: self.state != "running", POLL_S)

    def stop(self) -> None:
        """End the ranks now; what they wrote stays. A run that was opened is left to whatever
        launched it."""
        if self._watch:
            self._watch.stop("The run was stopped.")

    def pause(self) -> None:
        """Keep the ranks where they are: they hold their memory and compute nothing. Their clocks
        leave the pause out; a sleep, and what a GPU was asked for, go on in it. A run that was
        opened is left to whatever launched it."""
        if self._watch:
            self._watch.pause(True)

    def resume(self) -> None:
        """Let paused ranks go on."""
        if self._watch:
            self._watch.pause(False)

    @property
    def paused(self) -> bool:
        return bool(self._watch and self._watch.paused)

    @property
    def spent_s(self) -> float | None:
        """Seconds since it began, pauses left out; None of a run that was opened."""
        return self._watch.wall() / 1e9 if self._watch else None

    # -- what happened -----------------------------------------------------------------------------

    @property
    def now(self) -> str:
        """Which ranks compute, and for how long, where a run that this process launched has logged
        nothing for a while; "" otherwise."""
        return self._watch.now if self._watch else ""

    @property
    def ranks(self) -> int:
        return self.settings["ranks"]

    @property
    def clock(self) -> str:
        """The clock that the run is about: "modelled", or "measured" where the modelled one is
        off."""
        return "modelled" if self.settings["clock"] else "measured"

    def trace(self, clock: str | None = None) -> Trace:
        """The events so far on one clock, also of a run that has failed or still goes on, or whose
        logs were damaged."""
        clock = self._clock(clock)
        over, logs = self.state == "done", self._logs()  # the state is asked before reading
        events = [
            event for log in logs for item in log.items if (event := getattr(item, clock, None))
        ]
        header = {
            name: self.settings[name]
            for name in ("unit", "ticks_per_unit", "ranks", "steps", "settings")
        }
        header |= {"unit": "s", "ticks_per_unit": 10**9} if clock == "measured" else {}
        if not over or any(log.state != "done" for log in logs):
            # Its steps are those that it has done; its numbers are not those of what was asked for.
            ended = {
                state: [each.rank for each in self.waits if each.state == state]
                for state in ("failed", "waits")
            } | {"in": [each.rank for each in self.waits if ", in " in f", {each.what}"]}
            header |= {
                "steps": min(steps_done(events, header["settings"]), header["steps"]),
                "settings": {**header["settings"], "unfinished": ended},
            }
        return Trace.of(events, clock, **header)

    def traces(self) -> dict[str, Trace]:
        """By clock: the modelled trace, unless that clock was off, and the measured one."""
        return {clock: self.trace(clock) for clock in dict.fromkeys((self.clock, "measured"))}

    def events(self, clock: str | None = None, poll_s: float = POLL_S) -> Iterator:
        """The events on one clock as the ranks write them; ends when the run has ended and all were
        given."""
        clock, tails = self._clock(clock), [Tail(*of) for of in self._asked()]
        while True:
            over = (
                self.state != "running"
            )  # asked before reading, so that nothing written before the end is missed
            for tail in tails:
                yield from (event for item in tail.new() if (event := getattr(item, clock, None)))
            if over:
                return
            time.sleep(poll_s)

    def _clock(self, clock: str | None) -> str:
        refuse(
            (
                clock not in (None, "modelled", "measured"),
                f'A run has no clock {clock!r}: choose "modelled" or "measured".',
            ),
            (
                clock == "modelled" and not self.settings["clock"],
                'This run has no modelled clock: ask for "measured", or launch it with cost= and'
                " clock=True.",
            ),
        )
        return clock or self.clock

    def _logs(self) -> list[Log]:
        """Each rank's log, as far as it goes now."""
        return [log.read() for log in self._kept]

    def _asked(self) -> list[tuple[Path, int, int, int]]:
        """Of each log: where it is, its rank, how many ranks there are, and how much of it is read
        at most."""
        return [
            (self.directory / f"events-{rank}.jsonl", rank, self.ranks, MOST_ITEMS // self.ranks)
            for rank in range(self.ranks)
        ]

    # -- results -----------------------------------------------------------------------------------

    @cached_property
    def results(self) -> list[dict[str, np.ndarray]]:
        """What each rank returned, by rank; after the run. Impossible where a rank's file is gone
        or damaged."""
        self.wait()
        return [
            results.read(self.directory / f"result-{rank}.npz", rank) for rank in range(self.ranks)
        ]

    @cached_property
    def replicas(self) -> list[str]:
        """A sentence on each name of which several ranks returned other values: none where all
        replicas are equal to the bit."""
        return results.replicas_differ(self.results)

    @property
    def result(self) -> dict[str, np.ndarray]:
        """What all ranks returned, as one dict; of a name that several returned, the lowest
        rank's, and a warning where they differ."""
        for told in self.replicas:
            warnings.warn(told, stacklevel=2)
        return {name: array for arrays in reversed(self.results) for name, array in arrays.items()}

    def output(self, rank: int) -> str:
        """What the rank printed, or the end of it where that is very much."""
        try:
            with open_regular(self.directory / f"rank-{rank}.log") as file:
                file.seek(-min(PRINTED_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
                return file.read(PRINTED_BYTES).decode("utf-8", errors="replace")
        except OSError:
            return ""

    def summary(self) -> dict:
        """Step time, shares of the time, device-hours and energy: numbers, or None where the
        clock's unit or the watts are unknown."""
        trace, watts = self.trace(), self.settings["watts"]
        hours = trace.makespan * trace.ranks / 3600 if trace.unit == "s" else None
        return {
            "clock": trace.clock,
            "unit": trace.unit,
            "steps": trace.steps,
            "step_time": trace.step_time,
            "idle_share": trace.shares().idle,
            "shares": trace.shares(),
            "device_hours": hours,
            "energy_wh": hours * watts if hours is not None and watts is not None else None,
        }


def steps_done(events, settings: dict) -> int:
    """Training steps that every rank has finished, by its updates, of a run whose settings say its
    micro-batches; else 1."""
    last = {
        event.rank: int(action[3])
        for event in events
        if isinstance(event, Span)
        and event.kind == "U"
        and (action := ACTION.fullmatch(event.name))
    }
    size = settings.get("micro_batches")
    return (
        max(1, (min(last.values()) + 1) // size)
        if last and isinstance(size, int) and size > 0
        else 1
    )
