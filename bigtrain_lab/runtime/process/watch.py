"""The watch over a run's processes: a thread in the launching process that starts them and sees
ends, stalls and deadlocks.

It kills each rank's process and what that has started, by pid, and says at the end what happened.
Nothing here waits for a rank's goodwill. All that may go wrong from the first rank's start on ends
in this thread, in a note of the run's end, and with no process left.
"""

import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Container
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from math import inf
from multiprocessing.connection import wait
from pathlib import Path

from ...core import Impossible
from ..failure import frames
from ..failure.diagnose import Exit
from ..failure.progress import Progress
from ..record.kept import MOST_RANKS, returned
from . import server
from .end import INTERRUPTED, LOOK_S, STACKS_S, End, within
from .pulse import Pulse

STILL_S = 0.01  # by then no thread of a stopped process runs on
KILLED_S = 10.0  # a killed process ends, unless a disk keeps it


class Watch:
    """Starts the ranks, in a thread, and watches until all have ended, then sets `finished`; `end`
    is the run's. RuntimeError where there can be no such thread."""

    def __init__(self, job, travelling: bytes, stall_s: float):
        self.end, self.finished = End("running"), threading.Event()
        self.directory = Path(job.directory)
        self._job, self._travelling, self._room = job, travelling, None
        self._processes: list = []
        self._pulses: dict[int, Pulse] = {}
        self._exits: dict[int, Exit] = {}
        self._progress = Progress(job, stall_s if job.record else inf, self._pulses)
        self._stopped: str | None = None
        self._rests = self.paused = False  # what the ranks are to do, and do
        self._still_ns = self._pauses_ns = 0  # since when they rest or have ended; all pauses
        self._thread = threading.Thread(target=self._watch, daemon=True, name="bigtrain_lab watch")
        self._thread.start()

    @property
    def now(self) -> str:
        """What the ranks are at, where it takes long; "" otherwise."""
        return "" if self.finished.is_set() or self.paused else self._progress.now

    def wall(self) -> int:
        """Nanoseconds since the run began, pauses left out."""
        return (self._still_ns or time.monotonic_ns()) - self._job.zero_ns - self._pauses_ns

    def pause(self, rests: bool) -> None:
        """Keep the ranks where they are, or let them go on, and return once they do; while they
        start, at once."""
        self._rests = rests
        starting = len(self._pulses | self._exits) < self._job.mesh.size
        within(inf, lambda: starting or self.paused == self._rests or self.finished.is_set())

    def stop(self, why: str) -> None:
        """End the ranks now and return when they are gone."""
        self._stopped = self._stopped or why
        self.finished.wait()

    # -- the thread --------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._begin()
            end = self._until_the_end()
        except Impossible as error:
            end = End("failed", str(error))
        except BaseException as error:  # noqa: B902  (whatever goes wrong here must not leave ranks behind)
            end = End("failed", f"The watch over the ranks failed: {type(error).__name__}: {error}")
        self._finish(end)

    def _begin(self) -> None:
        """Start the ranks, unless the run is stopped meanwhile."""
        place = server.room()
        try:
            self._room = tempfile.mkdtemp(prefix="run-", dir=place)
            payload, store, pauses = (
                os.path.join(self._room, name) for name in ("program", "store", "pauses")
            )
            self._job = replace(self._job, store=store, pauses=pauses)
            Path(pauses).write_bytes(bytes(8))
            Path(payload).write_bytes(pickle.dumps((self._job, self._travelling)))
        except OSError as error:
            raise Impossible(
                f"The program cannot be kept in {place} for the ranks"
                f" ({error.strerror or error}): free some space there, or let TMPDIR name another"
                " directory."
            ) from error
        self._travelling = b""
        try:
            self._processes = server.start(self._job.mesh.size, payload)
            while len(self._pulses | self._exits) < len(self._processes) and not self._stopped:
                self._look()
        except OSError as error:
            raise Impossible(
                f"Rank {len(self._pulses)} cannot start ({error.strerror}): end other programs, or"
                " ask for fewer ranks."
            ) from error

    def _until_the_end(self) -> End:
        while True:
            self._look()
            if self._rests:
                self._rest()
            if self._stopped:
                return End("stopped", self._stopped)
            if any(exit.code == -signal.SIGINT for exit in self._exits.values()):
                return End("stopped", INTERRUPTED)
            everybody = len(self._exits) == len(self._processes)
            if any(exit.code == server.NO_SERVER for exit in self._exits.values()):
                return self._progress.failed(server.SERVER_ENDED, self._exits)
            done = all(returned(self.directory, rank) for rank in self._exits)
            if any(exit.code for exit in self._exits.values()) or everybody and not done:
                self._look(0)
                if end := self._progress.failure(self._exits, self._hold, everybody):
                    return end
            elif everybody:
                return End("done")
            elif found := self._progress.trouble(self._ask_for_stacks):
                return self._progress.failed(found, self._exits)
            elif endless := self._progress.endless():
                self._ask_for_stacks(endless)

    def _rest(self) -> None:
        """Keep the ranks where they are until they may go on, or one is ended, and leave that time
        out of their clocks."""
        for pulse in self._pulses.values():
            pulse.stop()
        time.sleep(STILL_S)
        self._still_ns, self.paused, gone = time.monotonic_ns(), True, len(self._exits)
        while self._rests and not self._stopped:
            self._look()
            if len(self._exits) > gone:
                self._rests = False
        pauses_ns = self._pauses_ns + time.monotonic_ns() - self._still_ns
        with open(self._job.pauses, "r+b") as file:  # never emptied: ranks have it mapped
            file.write(pauses_ns.to_bytes(8))
        for pulse in self._pulses.values():
            pulse.go_on()
        self._progress.begin()
        self._pauses_ns, self._still_ns, self.paused = pauses_ns, 0, False

    def _look(self, timeout: float = LOOK_S) -> None:
        """Wait a moment for a process to begin or to end, and note those that have."""
        left = [(rank, p) for rank, p in enumerate(self._processes) if rank not in self._exits]
        ready = wait([process.sentinel for _, process in left], timeout)
        for rank, process in left:
            if process.sentinel in ready or process.pid is None:
                process.join()
                if process.exitcode is not None:
                    self._exits[rank] = Exit(process.exitcode, self.wall())
                elif process.pid:
                    self._pulses[rank] = process.pulse

    def _ask_for_stacks(self, whom: Container[int] = range(MOST_RANKS)) -> None:
        """Let each rank of these that is left write where it is, and wait until it has, or has
        ended. One that is kept from it is not asked."""
        asked = {}
        for rank, process in enumerate(self._processes):
            if rank in whom and rank not in self._exits and not self._pulses[rank].kept():
                with suppress(OSError):
                    asked[rank] = self._job.file("stacks", rank, "txt")
                    os.truncate(asked[rank], 0)  # of what it wrote when it was asked before
                    os.kill(process.pid, signal.SIGUSR1)

        def writes(rank: int, path: Path) -> bool:
            return not frames.is_whole(frames.dumped(path)) and self._pulses[rank].is_alive()

        within(STACKS_S, lambda: self._stopped or not any(starmap(writes, asked.items())))

    def _hold(self) -> None:
        """Let the ranks that are left write where they are, and stop them there."""
        self._ask_for_stacks()
        for rank, pulse in self._pulses.items():
            if rank not in self._exits:
                pulse.stop()

    def _finish(self, end: End) -> None:
        self._still_ns = self._still_ns or time.monotonic_ns()
        try:
            for process in self._processes:
                if process.exitcode in (None, server.NO_SERVER):
                    process.pulse.kill()
            until = time.monotonic() + KILLED_S
            for process in self._processes:
                if process.pid:
                    process.join(until - time.monotonic())
                # nobody says that it has ended, where the server is gone
                within(until - time.monotonic(), lambda pulse=process.pulse: not pulse.is_alive())
                process.close()  # one that begins later is killed by the server
            if self._room:
                shutil.rmtree(self._room, ignore_errors=True)
            end.note(self.directory)
        finally:  # whoever waits must go on
            self.end, self.paused = end, False
            self.finished.set()
