"""The lookout of a rank that torchrun started: a thread that sees failures, deadlocks and stalls,
and ends the rank with the run.

Under `launch` one watch owns all processes (watch.py). Here nobody does, so each rank looks out for
itself, by the board that all share; what has happened is decided once, by whoever says it first:

    every rank   the other ranks of its machine, torchrun that started it, signals, the end that
                 another one has told
    rank 0       the logs of all, in the shared directory: a deadlock, or no progress for the stall
                 limit

A main thread that is caught in gloo cannot be called back: its lookout says one sentence and ends
the process.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from ..failure import diagnose
from ..failure.diagnose import Exit
from ..failure.progress import Counted, Progress
from ..process.end import FAILED, INTERRUPTED, LOOK_S, STACKS_S, VICTIMS_S, End
from ..process.pulse import Beats, Pulse
from .board import say

GRACE_S = (
    3.0  # for rank 0 to decide, else another rank does; and for a main thread to come by itself
)
LAST_S = 5.0  # for a rank that was killed to have ended, once its connections are closed
OTHERS_S = 0.5  # for another rank's note, once this one has seen how rank 0 ended


class Lookout:
    """Used as a context around the rank's work; then `end(code)` waits for the others and returns
    how the run ended."""

    def __init__(self, team, job, stall_s: float):
        self.index, self.size, self._team = team.index, team.place.ranks, team
        self._board, self._own_board = team.board.clone(), team.board
        self._job, self._directory = job, Path(job.directory)
        self._mates = {rank: Pulse.of(process).open() for rank, process in team.mates.items()}
        pulses = {**self._mates, self.index: Pulse(os.getpid())}
        self._progress = Progress(job, stall_s, lambda: self._board.count("signs"), pulses)
        self._outputs = Counted(sys.stdout), Counted(sys.stderr)
        self._beats, self._signs = Beats(), (0, 0)
        self._exits: dict[int, Exit] = {}  # of ranks on this machine whose processes have ended
        self._parent = os.getppid() if team.place.agent else None
        self._came, self._known = threading.Event(), threading.Event()
        self._end: End | None = None
        self._dumped = self._asked_to_end = False
        self._thread = threading.Thread(
            target=self._look_out, daemon=True, name="bigtrain_lab lookout"
        )

    def __enter__(self):
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = None
        if threading.current_thread() is threading.main_thread():
            # Python's handler runs only when the main thread next runs Python: the thread reads the
            # signal's number here.
            self._before = (
                signal.set_wakeup_fd(self._write, warn_on_full_buffer=False),
                signal.signal(signal.SIGTERM, lambda *_: None),
            )
        sys.stdout, sys.stderr = self._outputs
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._came.set()
        sys.stdout, sys.stderr = (output.stream for output in self._outputs)
        if self._before:
            signal.set_wakeup_fd(self._before[0])
            signal.signal(signal.SIGTERM, self._before[1] or signal.SIG_DFL)
        if self._end:  # else the thread goes on until this process ends
            os.close(self._read)
            os.close(self._write)

    def end(self, code: int) -> End:
        """Say that this rank's work has ended with this code, and wait until the run has."""
        self._came.set()
        with suppress(RuntimeError):  # no board any more: the thread finds out too
            self._own_board.count("failed" if code else "over", 1)
        self._known.wait()
        self._thread.join()
        return self._end

    def give_up(self, why: str) -> End:
        """End the run: this rank can keep no record of it."""
        end = self._progress.failed(why, {})._replace(teller=self.index)
        with suppress(RuntimeError):
            self._own_board.first("end", end.told())
        return self.end(FAILED)

    # -- the thread --------------------------------------------------------------------------------

    def _look_out(self) -> None:
        try:
            try:
                end = self._until_the_end()
            except RuntimeError:  # no board: its holder has ended
                end = self._without_board()
        except BaseException as error:  # noqa: B902  (whatever goes wrong here must not leave a rank that nobody looks after)
            diagnosis = f"The lookout of rank {self.index} failed: {type(error).__name__}: {error}"
            end = End("failed", diagnosis, teller=self.index).note(self._directory, self.index)
        for mate in self._mates.values():
            mate.close()
        self._end = end
        self._known.set()
        if end.state != "done" and not self._came.wait(0 if self._asked_to_end else GRACE_S):
            say(self.words(end))
            sys.stdout.flush()
            self._board.job.stay(waits=False)
            os._exit(130 if end.diagnosis == INTERRUPTED else FAILED)

    def words(self, end: End) -> str:
        """What this rank says of a run that did not end well: one rank tells all, the others its
        first line."""
        if end.teller != self.index:
            return end.diagnosis.partition("\n")[0]
        return f"{end.diagnosis}\nWhat the ranks wrote is kept in {self._directory}."

    def _until_the_end(self) -> End:
        board, trouble = self._board, None
        while True:
            heard = self._listen()
            if told := board.peek("end"):
                return End.of(told)
            if signal.SIGINT in heard:
                return self._publish(End("stopped", INTERRUPTED))
            if self._is_orphan():
                return self._publish(End("stopped", self._orphaned()))
            for rank, exit in self._silent().items():
                board.first("gone", [rank, exit.code])
            self._asked_to_end |= signal.SIGTERM in heard
            self._tell_of_signs()
            failed, gone = board.count("failed"), board.peek("gone")
            if failed or gone or self._asked_to_end:
                trouble = trouble or time.monotonic()
                if end := self._failure(gone, time.monotonic() - trouble):
                    return end
            elif self.index == 0 and board.count("over") == self.size:
                return self._publish(End("done"))
            elif (
                self.index == 0
                and self._job.record
                and (found := self._progress.trouble(self._stacks_of_all))
            ):
                return self._publish(self._progress.failed(found, {}))
            if board.count("stacks asked") and not self._dumped:
                self._dump()

    def _listen(self) -> set:
        """Wait a moment; the signals that came meanwhile. Ranks that end here are noted at once."""
        alive = {rank: mate for rank, mate in self._mates.items() if rank not in self._exits}
        fds = [mate.fd for mate in alive.values() if mate.fd is not None]
        ready = wait([self._read, *fds], LOOK_S)
        for rank, mate in alive.items():
            if mate.fd in ready or mate.fd is None and not mate.is_alive():
                self._exits[rank] = Exit(mate.exit_code(), time.monotonic_ns() - self._job.zero_ns)
                mate.close()
        return set(os.read(self._read, 64)) if self._read in ready else set()

    def _silent(self) -> dict[int, Exit]:
        """The ranks of this machine whose processes have ended without a word."""
        return {
            rank: exit
            for rank, exit in self._exits.items()
            if not diagnose.status_of(self._directory, rank)
        }

    def _tell_of_signs(self) -> None:
        """Rank 0 cannot see what this rank prints or computes: it hears of both on the board."""
        used_s = time.process_time() - time.thread_time()  # without the lookout's own
        writes, beats = sum(output.writes for output in self._outputs), self._beats.look(used_s)
        if (writes, beats) != self._signs:
            self._signs = writes, beats
            self._board.count("signs", 1)

    def _failure(self, gone: list | None, since_s: float) -> End | None:
        """How the run failed, once the culprit is known; rank 0 decides, another rank where that
        does not."""
        exits = diagnose.failed(self._directory, self.size)
        silent, code = gone or (None, None)
        if gone:
            exits.setdefault(silent, Exit(code, time.monotonic_ns() - self._job.zero_ns))
        known = diagnose.has_culprit(self._directory, exits)
        if since_s < (0.05 if known else VICTIMS_S) + (
            0 if self.index == 0 else 0.5 if self._asked_to_end else GRACE_S
        ):
            return None
        if not exits:
            why = f"Rank {self.index} was ended from outside (SIGTERM)."
            return self._publish(End("stopped", why))
        end = self._progress.failure(exits, lambda: self._stacks_of_all(silent))
        teller = diagnose.culprit_of(self._directory, exits)
        return self._publish(end if teller == silent else end._replace(teller=teller))

    def _publish(self, end: End) -> End:
        """Say how the run ended, unless another rank has; how it ended then."""
        end = end if end.teller is not None else end._replace(teller=self.index)
        found = End.of(self._board.first("end", end.told()))
        return end.note(self._directory, self.index) if found == end else found

    def _without_board(self) -> End:
        """The machine of rank 0 has ended: how, by the directory and by what has ended here."""
        until = time.monotonic() + LAST_S
        while not (end := End.noted(self._directory)) and time.monotonic() < until:
            self._listen()  # its connections close before it has ended
            if any(exit.code is not None for exit in self._silent().values()):
                until = min(until, time.monotonic() + OTHERS_S)
        if end:
            return end
        self._asked_to_end = True
        if self._is_orphan():
            end = End("stopped", self._orphaned())
        elif exits := self._silent():
            end = self._progress.failure(exits, lambda: None)
        else:
            host = self._team.members[0].host
            why = f"Rank {self.index} lost the connection to the machine of rank 0, {host}"
            end = self._progress.failed(f"{why}: see what torchrun says there.", {})
        return end._replace(teller=self.index).note(self._directory, self.index)

    def _is_orphan(self) -> bool:
        """Whether the torchrun that started this rank has ended: nobody will end the rank now."""
        self._asked_to_end |= (orphan := self._parent not in (None, os.getppid()))
        return orphan

    def _orphaned(self) -> str:
        return f"The torchrun on {self._team.me.host} that started rank {self.index} has ended."

    # -- stacks ------------------------------------------------------------------------------------

    def _stacks_of_all(self, silent: int | None = None) -> None:
        """Ask each lookout that is left for the stacks of its rank, and give them a moment."""
        self._board.count("stacks asked", 1)
        self._dump()
        until = time.monotonic() + STACKS_S
        while (
            self._board.count("stacks here") < self.size - (silent is not None)
            and time.monotonic() < until
        ):
            time.sleep(0.02)

    def _dump(self) -> None:
        self._dumped = True
        try:
            with open(self._job.file("stacks", self.index, "txt"), "a", encoding="utf-8") as file:
                faulthandler.dump_traceback(file)
        except OSError:
            pass
        self._board.count("stacks here", 1)
