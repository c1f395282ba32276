"""The lookout of a rank that torchrun started: a thread by which the ranks agree on how the run
ended.

torchrun reports and ends its own ranks. What it cannot know is told here, at the store that all
share; the first end that is told counts:

    every rank   its program failed; a rank of this machine has ended without a word; a signal came;
                 its torchrun has ended; the store has gone
    rank 0       the logs of all, in the shared directory: a deadlock, or no progress for the stall
                 limit

Where the store has gone, with the machine of rank 0, the note in the directory says how it ended.
The rank that told the end says all of it, the others its first line. A main thread that is caught
in gloo cannot be called back: its lookout says the sentence and ends the process.
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

from ..failure import diagnose
from ..failure.diagnose import Exit
from ..failure.progress import Progress
from ..process.border import Place
from ..process.end import FAILED, INTERRUPTED, LOOK_S, STACKS_S, End, within
from ..process.pulse import Pulse
from .meeting import Meeting, say

GRACE_S = 3.0  # for a main thread to come by itself
LAST_S = 4.0  # for a process to have ended, or its end to be noted, once its connections are closed


class Lookout:
    """Begins at once. `finish(code)` waits for the other ranks and returns how the run ended.

    mates   other ranks of this machine -> [host, pid, start] of their processes
    """

    def __init__(self, place: Place, meeting: Meeting, mates: dict[int, list], job, stall_s: float):
        self.index, self.size, self._code = place.index, place.ranks, 0
        self._store, self._own_store, self._lost = meeting.clone(), meeting, inf
        self._job, self._directory = job, Path(job.directory)
        self._mates = {rank: Pulse.of(process) for rank, process in mates.items()}
        self._pulse = Pulse(os.getpid())
        self._progress = Progress(
            job,
            stall_s,
            lambda: self._ask("count", "signs"),
            {**self._mates, self.index: self._pulse},
        )
        self._exits: dict[int, Exit] = {}
        self._parent = os.getppid() if place.agent else None
        self._came, self._dumped, self._end = threading.Event(), False, None
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
        """Say that this rank's work has ended with this code, and wait until the run has."""
        self._code = code
        self._came.set()
        if not code:
            with suppress(RuntimeError):  # no store any more: the thread finds out too
                self._own_store.count("over", 1)
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
            told = f"The lookout of rank {self.index} failed: {type(error).__name__}: {error}"
            end = End("failed", told)
        self._end = self._published(end)
        if self._end.state != "done" and not self._came.wait(GRACE_S):
            say(self.words())
            sys.stdout.flush()
            os._exit(FAILED)

    def _until_the_end(self) -> End:
        terminated, computed = inf, 0
        while True:
            came = wait([self._signals], LOOK_S) and os.read(self._signals.fileno(), 64)
            told, noted = self._ask("peek", "end"), End.noted(self._directory)
            if end := End.of(told) if told else noted:
                return end
            if signal.SIGINT in came:
                return End("stopped", INTERRUPTED)
            if self._parent not in (None, os.getppid()):
                return End("stopped", f"The torchrun that started rank {self.index} has ended.")
            terminated = min(terminated, time.monotonic() if signal.SIGTERM in came else inf)
            self._look()
            alone = not self._exits.keys() - {self.index}
            if alone and time.monotonic() - self._lost > LAST_S:
                told = f"Rank {self.index} lost the connection to the machine of rank 0: see what"
                return self._progress.failed(f"{told} torchrun says there.", {})
            if self._exits or terminated < inf:
                if end := self._progress.failure(self._exits, self._stacks_of_all):
                    return end
                if not self._progress.ended(self._exits) and time.monotonic() - terminated > 1:
                    return End("stopped", f"Rank {self.index} was ended from outside (SIGTERM).")
            elif self.index == 0 and self._ask("count", "over") == self.size:
                return End("done")
            elif (
                self.index == 0
                and self._job.record
                and (found := self._progress.trouble(self._stacks_of_all))
            ):
                return self._progress.failed(found, {})
            if computed != (computed := self._pulse.count()):
                self._ask("count", "signs", 1)  # rank 0 may not see this process
            if self._ask("count", "stacks asked"):
                self._dump()

    def _look(self) -> None:
        """Note how this rank's work has failed, and who has ended without a word on this
        machine."""
        now = time.monotonic_ns() - self._job.zero_ns
        if self._code:
            self._exits.setdefault(self.index, Exit(self._code, now))
        for rank, mate in self._mates.items():
            if not mate.is_alive() and not diagnose.status_of(self._directory, rank):
                self._exits.setdefault(rank, Exit(None, now))

    def _published(self, end: End) -> End:
        """Say how the run ended, unless another rank has; how it ended then."""
        end = end._replace(teller=self.index)
        told = self._ask("first", "end", end.told())
        return (End.of(told) if told else end).note(self._directory, self.index)

    def _ask(self, what: str, *about):
        """What the store answers; None, and since when is known, where it has gone."""
        try:
            return getattr(self._store, what)(*about)
        except RuntimeError:  # its holder has ended
            self._lost = min(self._lost, time.monotonic())

    # -- stacks ------------------------------------------------------------------------------------

    def _stacks_of_all(self) -> None:
        """Ask each lookout that is left for the stacks of its rank, and give them a moment."""
        self._ask("count", "stacks asked", 1)
        self._dump()
        left = self.size - len(self._exits.keys() - {self.index})

        def come() -> bool:
            here, ended = self._ask("count", "stacks here"), self._ask("peek", "end")
            return self._lost < inf or here >= left or ended is not None

        within(STACKS_S, come, 0.02)

    def _dump(self) -> None:
        if self._dumped:
            return
        self._dumped = True
        stacks = self._job.file("stacks", self.index, "txt")
        with suppress(OSError), open(stacks, "a", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)
        self._ask("count", "stacks here", 1)
