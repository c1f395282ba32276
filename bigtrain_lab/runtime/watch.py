"""The watch over a run's processes: a thread in the launching process that sees ends, stalls and deadlocks.

It ends ranks by their own process only, and says at the end what happened. Nothing here waits for a rank's goodwill.
"""

import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

from . import diagnose, frames, server
from .diagnose import Exit
from .end import INTERRUPTED, LOOK_S, STACKS_S, VICTIMS_S, End
from .progress import Progress


class Watch:
    """Watches until all ranks have ended, then sets `finished`; `end` is the run's."""

    def __init__(self, processes: list, job, stall_s: float):
        self.end, self.finished = End("running"), threading.Event()
        self._processes, self._job, self._progress = processes, job, Progress(job, stall_s)
        self._directory = Path(job.directory)
        self._exits: dict[int, Exit] = {}
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
            end = self._until_the_end()
            if end.state == "failed" and self._job.record:
                end = end._replace(waits=tuple(diagnose.states(self._directory, self._progress.doings(), self._exits)))
        except BaseException as error:  # noqa: B902  (whatever goes wrong here must not leave ranks behind)
            end = End("failed", f"The watch over the ranks failed: {type(error).__name__}: {error}")
        self._finish(end)

    def _until_the_end(self) -> End:
        deadline = None
        while True:
            self._look()
            if self._stopped:
                return End("stopped", self._stopped)
            if any(exit.code == -signal.SIGINT for exit in self._exits.values()):
                return End("stopped", INTERRUPTED)
            everybody = len(self._exits) == len(self._processes)
            if any(exit.code for exit in self._exits.values()):
                deadline = deadline or time.monotonic() + VICTIMS_S
                if everybody or diagnose.has_culprit(self._directory, self._exits) or time.monotonic() > deadline:
                    return self._failure()
            elif everybody:
                if all(diagnose.status_of(self._directory, rank) for rank in self._exits):
                    return End("done")
                return End("failed", diagnose.failure(self._directory, self._progress.doings(), self._exits))
            elif self._job.record and (found := self._progress.trouble(self._ask_for_stacks)):
                return End("failed", found)

    def _failure(self) -> End:
        time.sleep(0.05)  # for a failure at the same moment, which may have been first
        self._look(0)
        if any(exit.code == server.NO_SERVER for exit in self._exits.values()) and server.has_ended():
            return End("failed", server.SERVER_ENDED)
        told = diagnose.failure(self._directory, self._progress.doings(), self._exits)
        self._ask_for_stacks()  # of those that wait for it
        return End("failed", told)

    def _look(self, timeout: float = LOOK_S) -> None:
        """Wait a moment for a process to end, and note those that have."""
        alive = {p.sentinel: rank for rank, p in enumerate(self._processes) if rank not in self._exits}
        for ready in wait([*alive, self._wake_read], timeout):
            if ready in alive:
                rank = alive[ready]
                self._processes[rank].join()
                self._exits[rank] = Exit(self._processes[rank].exitcode, time.monotonic_ns() - self._job.zero_ns)

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

    def _finish(self, end: End) -> None:
        try:
            for rank, process in enumerate(self._processes):
                if rank not in self._exits:
                    process.kill()
            for process in self._processes:
                process.join()
                process.close()
            shutil.rmtree(Path(self._job.store).parent, ignore_errors=True)
            end.note(self._directory)
        finally:  # whoever waits must go on
            with self._lock:
                self.end = end
                self.finished.set()
                os.close(self._wake_read)
                os.close(self._wake_write)
