"""The lookout of a rank that torchrun started: a thread that sees failures, deadlocks and stalls, and ends the rank with the run.

Under `launch` one watch owns all processes (watch.py). Here nobody does, so each rank looks out for itself, by the board
that all share; what has happened is decided once, by whoever says it first:

    every rank   the processes beside it, torchrun that started it, signals, the end that another one has told
    rank 0       the logs of all, in the shared directory: a deadlock, or no progress for the stall limit

A main thread that is caught in gloo cannot be called back: its lookout says one sentence and ends the process.
"""

import faulthandler
import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from ..core import Impossible, write_whole
from . import diagnose
from .diagnose import Doing, Exit
from .end import FAILED, INTERRUPTED, LOOK_S, STACKS_S, VICTIMS_S, noted_end
from .run import is_alive

GRACE_S = 3.0  # for rank 0 to decide; and for a main thread to come by itself, once the run has failed
TELLER_S = 1.0  # for the rank that tells all of it


class Lookout:
    """Used as a context around the rank's work; then `end(code)` waits for the others and returns how the run ended:
    {"state": "done", "failed" or "stopped", "diagnosis", "teller": the rank that tells all of it}."""

    def __init__(self, team, job, stall_s: float):
        self.index, self.size, self.host, self._team = team.index, team.place.ranks, team.me.host, team
        self._board, self._own_board = team.board.clone(), team.board
        self._job, self._stall_s, self._directory = job, stall_s, Path(job.directory)
        self._doings = [Doing(self._directory, rank) for rank in range(self.size)]
        self._mates, self._parent = team.mates, os.getppid() if team.place.agent else None
        self._came, self._known, self._end = threading.Event(), threading.Event(), None
        self._dumped = self._asked_to_end = False
        self._thread = threading.Thread(target=self._look_out, daemon=True, name="bigtrain_lab lookout")

    def __enter__(self):
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = None
        if threading.current_thread() is threading.main_thread():
            # Python's handler runs only when the main thread next runs Python: the thread reads the signal's number here.
            self._before = (signal.set_wakeup_fd(self._write, warn_on_full_buffer=False), signal.signal(signal.SIGTERM, lambda *_: None))
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._came.set()
        if self._before:
            signal.set_wakeup_fd(self._before[0])
            signal.signal(signal.SIGTERM, self._before[1] or signal.SIG_DFL)
        if self._end:  # else the thread goes on until this process ends
            os.close(self._read)
            os.close(self._write)

    def end(self, code: int) -> dict:
        """Say that this rank's work has ended with this code, and wait until the run has."""
        self._came.set()
        with suppress(RuntimeError):  # no board any more: the thread finds out too
            self._own_board.count("failed" if code else "over", 1)
        self._known.wait()
        self._thread.join()
        if self._end["state"] != "done" and self._end["teller"] != self.index:
            time.sleep(TELLER_S)  # torchrun ends all once one has ended
        return self._end

    def give_up(self, why: str) -> dict:
        """End the run: this rank can keep no record of it."""
        with suppress(RuntimeError):
            self._own_board.first("end", self._told("failed", why))
        return self.end(FAILED)

    # -- the thread -----------------------------------------------------------------------------------------

    def _look_out(self) -> None:
        try:
            try:
                end = self._until_the_end()
            except RuntimeError:  # no board: its holder has ended
                end = self._without_board()
        except BaseException as error:  # noqa: B902  (whatever goes wrong here must not leave a rank that nobody looks after)
            diagnosis = f"The lookout of rank {self.index} failed: {type(error).__name__}: {error}"
            end = self._write_end({"state": "failed", "diagnosis": diagnosis, "waits": [], "teller": self.index})
        self._end = end
        self._known.set()
        if end["state"] != "done" and not self._came.wait(0 if self._asked_to_end else GRACE_S):
            os.write(2, f"bigtrain: {self.words(end)}\n".encode(errors="replace"))
            sys.stdout.flush()
            os._exit(130 if end["diagnosis"] == INTERRUPTED else FAILED)

    def words(self, end: dict) -> str:
        """What this rank says of a run that did not end well: one rank tells all, the others its first line."""
        if end["teller"] != self.index:
            return end["diagnosis"].partition("\n")[0]
        return f"{end['diagnosis']}\nWhat the ranks wrote is kept in {self._directory}."

    def _until_the_end(self) -> dict:
        board, grown, size, suspected, trouble = self._board, time.monotonic(), None, None, None
        while True:
            heard = self._listen()
            if end := board.peek("end"):
                return end
            if signal.SIGINT in heard:
                return self._publish(self._told("stopped", INTERRUPTED))
            self._look_beside()
            self._asked_to_end |= signal.SIGTERM in heard
            failed, gone = board.count("failed"), board.peek("gone")
            if failed or gone is not None or self._asked_to_end:
                trouble = trouble or time.monotonic()
                if end := self._failure(gone, time.monotonic() - trouble):
                    return end
            elif self.index == 0 and board.count("over") == self.size:
                return self._publish(self._told("done", None))
            elif self.index == 0 and self._job.record:
                now = self._size()
                if now != size:
                    grown, size, suspected = time.monotonic(), now, None
                    continue
                found = diagnose.deadlock(self._follow())
                if found and found == suspected:
                    self._stacks_of_all()
                    return self._publish(self._told("failed", found + diagnose.lines(self._directory, self._doings)))
                suspected = found
                if time.monotonic() - grown > self._stall_s:
                    self._stacks_of_all()
                    return self._publish(self._told("failed", diagnose.hang(self._directory, self._follow(), self._stall_s)))
            if board.count("stacks asked") and not self._dumped:
                self._dump()

    def _listen(self) -> set:
        """Wait a moment; the signals that came meanwhile."""
        ready, _, _ = select.select([self._read], [], [], LOOK_S)
        return set(os.read(self._read, 64)) if ready else set()

    def _look_beside(self) -> None:
        """Note a rank on this machine whose process has ended without a word; end with a torchrun that was killed.

        Each lookout looks as far as the next rank that lives, which looks further: every rank is looked at by one."""
        for rank, process in sorted(self._mates.items(), key=lambda mate: (mate[0] - self.index) % self.size):
            if is_alive(process):
                break
            if not diagnose.status_of(self._directory, rank):
                self._board.first("gone", rank)
        if self._parent not in (None, os.getppid()):
            self._asked_to_end = True
            self._publish(self._told("stopped", self._orphaned()))

    def _failure(self, gone: int | None, since_s: float) -> dict | None:
        """How the run failed, once the culprit is known; rank 0 decides, another rank where that does not."""
        exits = {rank: Exit(FAILED, 0) for rank in range(self.size) if diagnose.status_of(self._directory, rank).get("state") == "failed"}
        if gone is not None:
            exits.setdefault(gone, Exit(None, time.monotonic_ns() - self._job.zero_ns))
        known = diagnose.has_culprit(self._directory, exits)
        if since_s < (0.05 if known else VICTIMS_S) + (0 if self.index == 0 else 0.5 if self._asked_to_end else GRACE_S):
            return None
        if not exits:
            return self._publish(self._told("stopped", f"Rank {self.index} was ended from outside (SIGTERM)."))
        teller = diagnose.culprit_of(self._directory, exits)
        told = diagnose.failure(self._directory, self._follow(), exits)
        self._stacks_of_all(gone)  # of those that wait for it
        return self._publish(self._told("failed", told, exits) | ({} if teller == gone else {"teller": teller}))

    def _told(self, state: str, diagnosis: str | None, exits: dict[int, Exit] | None = None) -> dict:
        waits = diagnose.states(self._directory, self._follow(), exits or {}) if state == "failed" and self._job.record else []
        return {"state": state, "diagnosis": diagnosis, "waits": [each._asdict() for each in waits], "teller": self.index}

    def _publish(self, end: dict) -> dict:
        """Say how the run ended, unless another rank has; how it ended then."""
        end = json.loads(json.dumps(end))  # as the board gives it back
        found = self._board.first("end", end)
        return self._write_end(end) if found == end else found

    def _write_end(self, end: dict) -> dict:
        """Keep how the run ended, unless another rank has, in one step that only one can do; how it ended then."""
        path = self._directory / "end.json"
        own = path.with_name(f"end-{self.index}.json")
        try:
            write_whole(own, json.dumps(end))
            try:
                os.link(own, path)
            except FileExistsError:
                return noted_end(self._directory) or end
            except OSError:  # a disk without links
                own.replace(path)
        except (Impossible, OSError):
            pass  # the disk is full, which the diagnosis says
        finally:
            with suppress(OSError):
                own.unlink()
        return end

    def _without_board(self) -> dict:
        """The machine of rank 0 has ended: how, by what the directory says."""
        time.sleep(0.5)  # a last word may be on its way
        if end := noted_end(self._directory):
            return end
        self._asked_to_end = True
        if self._parent not in (None, os.getppid()):
            return self._write_end(self._told("stopped", self._orphaned()))
        dead = [rank for rank, process in self._mates.items() if not is_alive(process) and not diagnose.status_of(self._directory, rank)]
        if dead:
            exits = {dead[0]: Exit(None, time.monotonic_ns() - self._job.zero_ns)}
            return self._write_end(self._told("failed", diagnose.failure(self._directory, self._follow(), exits), exits))
        return self._write_end(self._told("failed", f"Rank {self.index} lost the connection to the machine of rank 0, "
                                          f"{self._team.members[0].host}: see what torchrun says there."))

    def _orphaned(self) -> str:
        return f"The torchrun on {self.host} that started rank {self.index} has ended."

    # -- the logs -------------------------------------------------------------------------------------------

    def _follow(self) -> list[Doing]:
        for doing in self._doings:
            doing.follow()
        return self._doings

    def _size(self) -> list[int]:
        """Bytes in each rank's log. Opened, since a shared disk tells the true size to nobody else."""
        sizes = []
        for rank in range(self.size):
            try:
                with open(self._job.file("events", rank, "jsonl"), "rb") as file:
                    sizes.append(file.seek(0, os.SEEK_END))
            except OSError:
                sizes.append(0)
        return sizes

    def _stacks_of_all(self, gone: int | None = None) -> None:
        """Ask each lookout that is left for the stacks of its rank, and give them a moment."""
        self._board.count("stacks asked", 1)
        self._dump()
        until = time.monotonic() + STACKS_S
        while self._board.count("stacks here") < self.size - (gone is not None) and time.monotonic() < until:
            time.sleep(0.02)

    def _dump(self) -> None:
        self._dumped = True
        try:
            with open(self._job.file("stacks", self.index, "txt"), "a", encoding="utf-8") as file:
                faulthandler.dump_traceback(file)
        except OSError:
            pass
        self._board.count("stacks here", 1)
