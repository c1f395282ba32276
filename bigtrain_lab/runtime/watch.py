"""The watch over a run's processes: a thread in the launching process that sees ends, stalls and deadlocks.

It ends ranks by their own process only, and says at the end what happened. Nothing here waits for a rank's goodwill.
"""

import json
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from ..core import Impossible, write_whole
from . import diagnose, frames
from .diagnose import Doing, Exit
from .end import INTERRUPTED, LOOK_S, STACKS_S, VICTIMS_S

NO_SERVER = 255  # what multiprocessing says of a rank whose fork server is gone
SERVER_ENDED = ("The server that ranks are forked from has ended (killed; out of memory?), and with it all knowledge of the ranks: they "
                "were ended too. Run again: a new server starts by itself.")


def server_has_ended() -> bool:
    """Whether the process that ranks are forked from lives no longer, whatever the ranks do."""
    from multiprocessing import forkserver  # not on Windows

    import psutil

    pid = forkserver._forkserver._forkserver_pid
    try:
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Watch:
    """Watches until all ranks have ended, then sets `finished`. `state` and `diagnosis` are the run's."""

    def __init__(self, processes: list, job, stall_s: float):
        self.state, self.diagnosis, self.finished = "running", None, threading.Event()
        self._processes, self._job, self._stall_s = processes, job, stall_s
        self._directory = Path(job.directory)
        self._exits: dict[int, Exit] = {}
        self._doings = [Doing(self._directory, rank) for rank in range(len(processes))]
        self._stopped: str | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="bigtrain_lab watch")

    def start(self) -> None:
        self._thread.start()

    def stop(self, why: str) -> None:
        """End the ranks now and return when they are gone."""
        with self._lock:
            if self.finished.is_set():
                return
            self._stopped = self._stopped or why
            os.write(self._wake_write, b".")
        self.finished.wait()

    # -- the thread -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            state, diagnosis = self._until_the_end()
            waits = diagnose.states(self._directory, self._doings, self._exits) if state == "failed" and self._job.record else []
        except BaseException as error:  # noqa: B902  (whatever goes wrong here must not leave ranks behind)
            state, diagnosis, waits = "failed", f"The watch over the ranks failed: {type(error).__name__}: {error}", []
        self._end(state, diagnosis, waits)

    def _until_the_end(self) -> tuple[str, str | None]:
        grown, size, suspected, deadline = time.monotonic(), -1, None, None
        while True:
            self._look()
            if self._stopped:
                return "stopped", self._stopped
            if any(exit.code == -signal.SIGINT for exit in self._exits.values()):
                return "stopped", INTERRUPTED
            if any(exit.code for exit in self._exits.values()):
                deadline = deadline or time.monotonic() + VICTIMS_S
                everybody = len(self._exits) == len(self._processes)
                if everybody or diagnose.has_culprit(self._directory, self._exits) or time.monotonic() > deadline:
                    time.sleep(0.05)  # for a failure at the same moment, which may have been first
                    self._look(0)
                    if any(exit.code == NO_SERVER for exit in self._exits.values()) and server_has_ended():
                        return "failed", SERVER_ENDED
                    told = diagnose.failure(self._directory, self._follow(), self._exits)
                    self._ask_for_stacks()  # of those that wait for it
                    return "failed", told
            elif len(self._exits) == len(self._processes):
                if all(diagnose.status_of(self._directory, rank) for rank in self._exits):
                    return "done", None
                return "failed", diagnose.failure(self._directory, self._follow(), self._exits)
            if self._size() != size:
                grown, size, suspected = time.monotonic(), self._size(), None
            elif self._job.record:
                found = diagnose.deadlock(self._follow())
                if found and found == suspected:  # twice the same, with nothing written between
                    self._ask_for_stacks()
                    return "failed", found + diagnose.lines(self._directory, self._doings)
                suspected = found
                if time.monotonic() - grown > self._stall_s:
                    self._ask_for_stacks()
                    return "failed", diagnose.hang(self._directory, self._follow(), self._stall_s)

    def _look(self, timeout: float = LOOK_S) -> None:
        """Wait a moment for a process to end, and note those that have."""
        alive = {p.sentinel: rank for rank, p in enumerate(self._processes) if rank not in self._exits}
        for ready in wait([*alive, self._wake_read], timeout):
            if ready in alive:
                rank = alive[ready]
                self._processes[rank].join()
                self._exits[rank] = Exit(self._processes[rank].exitcode, time.monotonic_ns() - self._job.zero_ns)

    def _follow(self) -> list[Doing]:
        for doing in self._doings:
            doing.follow()
        return self._doings

    def _size(self) -> int:
        """Bytes in the ranks' logs: a run that works makes them grow."""
        total = 0
        for rank in range(len(self._processes)):
            for path in (self._job.file("events", rank, "jsonl"), self._job.file("rank", rank, "log")):
                try:
                    total += path.stat().st_size
                except OSError:
                    pass
        return total

    def _ask_for_stacks(self) -> None:
        """Let each rank that is left write where it is, and give it a moment."""
        asked = []
        for rank, process in enumerate(self._processes):
            if rank not in self._exits and hasattr(signal, "SIGUSR1"):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
                    asked.append(self._job.file("stacks", rank, "txt"))
        until = time.monotonic() + STACKS_S
        while not all(frames.is_whole(path) for path in asked) and time.monotonic() < until:
            time.sleep(0.01)

    def _end(self, state: str, diagnosis: str | None, waits: list) -> None:
        try:
            for rank, process in enumerate(self._processes):
                if rank not in self._exits:
                    process.kill()
            for process in self._processes:
                process.join()
                process.close()
            shutil.rmtree(Path(self._job.store).parent, ignore_errors=True)
            write_whole(self._directory / "end.json", json.dumps(
                {"state": state, "diagnosis": diagnosis, "waits": [each._asdict() for each in waits]}))
        except Impossible:
            pass  # the disk is full, which the diagnosis says; this Run still knows it
        finally:  # whoever waits must go on
            with self._lock:
                self.state, self.diagnosis = state, diagnosis
                self.finished.set()
                os.close(self._wake_read)
                os.close(self._wake_write)
