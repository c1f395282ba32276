"""The lookout of a rank that torchrun started: a thread by which the ranks agree on how the run
ended.

torchrun reports and ends its own ranks. What it cannot know is found here, and kept in the run's
directory, where the first note of the end counts:

    every rank             its program failed; a rank of this machine has ended without a word; a
                           signal came; its torchrun has ended
    the first rank of      the logs of all: a deadlock, or no progress for the stall limit
    each machine

The rank whose note counts says all of it, the others its first line. A main thread that is caught
in gloo cannot be called back: its lookout says the sentence and ends the process.

    end.json            how the run ended (process/end.py)
    pulse-<rank>.txt    grows while the rank computes, for those who do not see its process
    stacks              is there once somebody asks all ranks where they are
    stacks-<rank>.txt   the answer
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

from ..failure.diagnose import Exit
from ..failure.progress import Progress
from ..process.border import Place
from ..process.end import FAILED, INTERRUPTED, LOOK_S, STACKS_S, End, within
from ..process.pulse import Pulse
from ..record.kept import returned
from .meeting import Meeting

GRACE_S = 3.0  # for a main thread to come by itself


class Lookout:
    """Begins at once. `finish(code)` waits for the other ranks and returns how the run ended.

    meeting  where those that have come to an end say so
    mates    other ranks of this machine -> [host, pid, start] of their processes
    """

    def __init__(self, place: Place, meeting: Meeting, mates: dict[int, list], job, stall_s: float):
        self.index, self.size, self._code = place.index, place.ranks, 0
        self._meeting = meeting  # the main thread's until it has come
        self._job, self._directory = job, Path(job.directory)
        self._stacks = [job.file("stacks", rank, "txt") for rank in range(place.ranks)]
        self._mates = {rank: Pulse.of(process) for rank, process in mates.items()}
        self._pulse = Pulse(os.getpid())
        self._progress = Progress(
            job, stall_s, {**self._mates, self.index: self._pulse}, told=("pulse", "txt")
        )
        self._exits: dict[int, Exit] = {}
        self._parent = os.getppid() if place.agent else None
        self._came, self._end = threading.Event(), None
        self._signals, self._write = Pipe(duplex=False)
        os.set_blocking(self._write.fileno(), False)
        self._before = None
        if threading.current_thread() is threading.main_thread():
            # Python's handler runs only when the main thread next runs Python: the thread reads the
            # signal's number here.
            self._before = (
                signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False),
                signal.signal(signal.SIGTERM, lambda *_: None),
            )
        self._thread = threading.Thread(
            target=self._look_out, daemon=True, name="bigtrain_lab lookout"
        )
        self._thread.start()

    def finish(self, code: int) -> End:
        """Note that this rank's work has ended with this code, and wait until the run has."""
        self._code = code
        if not code:
            with suppress(RuntimeError):  # the store has gone
                self._meeting.post("over", True)
        self._came.set()
        self._thread.join()
        if self._before:
            signal.set_wakeup_fd(self._before[0])
            if self._end.state == "done":  # else torchrun may end this rank before it has spoken
                signal.signal(signal.SIGTERM, self._before[1] or signal.SIG_DFL)
        return self._end

    def words(self) -> str:
        """What this rank says of a run that did not end well."""
        if self._end.teller != self.index:
            return self._end.diagnosis.partition("\n")[0]
        return f"{self._end.diagnosis}\nWhat the ranks wrote is kept in {self._directory}."

    # -- the thread --------------------------------------------------------------------------------

    def _look_out(self) -> None:
        try:
            end = self._until_the_end()
        except BaseException as error:  # noqa: B902  (whatever goes wrong here must not leave a rank that nobody looks after)
            end = End(
                "failed",
                f"The lookout of rank {self.index} failed: {type(error).__name__}: {error}",
            )
        self._end = end._replace(teller=self.index).note(self._directory, self.index)
        if self._end.state != "done" and not self._came.wait(GRACE_S):
            # a line that is whole also beside other ranks' lines
            os.write(2, f"bigtrain: {self.words()}\n".encode(errors="replace"))
            sys.stdout.flush()
            os._exit(FAILED)

    def _until_the_end(self) -> End:
        terminated, computed = inf, 0
        while True:
            came = wait([self._signals], LOOK_S) and os.read(self._signals.fileno(), 64)
            if end := End.noted(self._directory):
                return end
            if signal.SIGINT in came:
                return End("stopped", INTERRUPTED)
            if self._parent not in (None, os.getppid()):
                return End("stopped", f"The torchrun that started rank {self.index} has ended.")
            terminated = min(terminated, time.monotonic() if signal.SIGTERM in came else inf)
            self._look()
            if self._exits or terminated < inf:
                if end := self._progress.failure(self._exits, self._stacks_of_all):
                    return end
                if not self._progress.ended(self._exits) and time.monotonic() - terminated > 1:
                    return End("stopped", f"Rank {self.index} was ended from outside (SIGTERM).")
            elif self._came.is_set() and self._all_are_done():
                return End("done")
            elif (
                self._job.record
                and self.index < min(self._mates, default=self.size)
                and (found := self._progress.trouble(self._stacks_of_all))
            ):
                return self._progress.failed(found, {})
            if computed != (computed := self._pulse.count()):
                pulse = self._job.file("pulse", self.index, "txt")
                with suppress(OSError), open(pulse, "a", encoding="utf-8") as file:
                    file.write(".")
            if (self._directory / "stacks").exists():
                self._dump()

    def _look(self) -> None:
        """Note how this rank's work has failed, and who has ended without a word on this
        machine."""
        now = time.monotonic_ns() - self._job.zero_ns
        if self._code:
            self._exits.setdefault(self.index, Exit(self._code, now))
        for rank, mate in self._mates.items():
            left = mate.is_alive() or returned(self._directory, rank)
            if not left and not self._progress.doings()[rank].raised:
                self._exits.setdefault(rank, Exit(None, now))

    def _all_are_done(self) -> bool | None:
        with suppress(RuntimeError):  # whoever holds the store has left, and noted the end before
            return self._meeting.have("over")

    # -- stacks ------------------------------------------------------------------------------------

    def _stacks_of_all(self) -> None:
        """Ask each lookout that is left for the stacks of its rank, and give them a moment."""
        with suppress(OSError):
            (self._directory / "stacks").touch()
        self._dump()
        asked = [path for rank, path in enumerate(self._stacks) if rank not in self._exits]
        within(
            STACKS_S,
            lambda: End.noted(self._directory) or all(path.exists() for path in asked),
        )

    def _dump(self) -> None:
        stacks = self._stacks[self.index]
        with suppress(OSError):
            if not stacks.exists():
                with open(partial := stacks.with_suffix(".partial"), "w", encoding="utf-8") as file:
                    faulthandler.dump_traceback(file)
                partial.replace(stacks)
