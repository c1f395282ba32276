"""A process as others see it: whether it lives, computes or is kept from it.

computes   it used at least WORK_S of processor within WITHIN_S
waits      it used less: a rank that waits for another, in a message, a collective or a meeting,
           was measured at 0.5 % at most
is kept    somebody has stopped it, or a disk does not answer
"""

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

WORK_S, WITHIN_S = (
    0.25,
    5.0,
)  # with ten processes on two cores, a rank that computes still gets three times this
GONE = (psutil.Error, OSError)  # OSError: this process has no descriptor left to look with
STOPPED = "stopped (SIGSTOP or Ctrl-Z)"
REMEDIES = {
    STOPPED: "Find out who stops the processes of ranks, and run again.",
    "stopped by a debugger": "Let the debugger go on in time, or launch with a longer stall_s.",
    "in uninterruptible sleep (disk)": "See whether the disk that it uses answers, and run again.",
}
KEPT = dict(
    zip((psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_DISK_SLEEP), REMEDIES)
)


def this_process() -> list:
    """[host, pid, start time]: what names a process, to others and later."""
    return [platform.node(), os.getpid(), psutil.Process().create_time()]


class Pulse:
    """A process as others see it; one that is gone does nothing. With its `start`, what has its
    number since is not it."""

    def __init__(self, pid: int, start: float | None = None):
        self._process = None
        with suppress(*GONE):
            process = psutil.Process(pid)
            if start is None or abs(process.create_time() - start) < 2:  # clocks are set
                self._process = process
        self._beats, self._used_s, self._since = 0, self._cpu_s(), time.monotonic()

    @classmethod
    def of(cls, named: list | None) -> "Pulse":
        """The process of this name; of another host, one that is gone."""
        host, pid, start = named or (None, 0, 0)
        return cls(pid if host == platform.node() else 0, start)

    def count(self) -> int:
        """Grows while the process computes, its threads included."""
        now, used_s = time.monotonic(), self._cpu_s()
        windows = (now - self._since) / WITHIN_S
        computes = used_s - self._used_s >= WORK_S * max(1, windows)
        if computes or windows > 1:
            self._beats, self._used_s, self._since = self._beats + computes, used_s, now
        return self._beats

    def kept(self) -> str:
        """What keeps the process from computing, in words; "" where nothing does."""
        return KEPT.get(self._status(), "")

    def is_alive(self) -> bool:
        """Whether it lives: not where it has ended and is not buried, nor where another process has
        its number now."""
        return self._status() not in (None, psutil.STATUS_ZOMBIE)

    def kill(self) -> None:
        """End the process and what it has started; never another one that has its number now."""
        family = [self._process, *self._ask(lambda process: process.children(recursive=True), ())]
        for process in filter(None, family):
            with suppress(*GONE):
                process.kill()

    def stop(self) -> None:
        """Keep the process where it is, until it is ended or may go on."""
        self._ask(lambda process: process.suspend())

    def go_on(self) -> None:
        self._ask(lambda process: process.resume())

    def _status(self) -> str | None:
        return self._ask(lambda process: process.status() if process.is_running() else None)

    def _cpu_s(self) -> float:
        times = self._ask(lambda process: process.cpu_times())
        return times.user + times.system if times else 0.0

    def _ask(self, what: Callable, gone=None):
        """what(process), or `gone` where there is none any more."""
        with suppress(*GONE):
            if self._process:
                return what(self._process)
        return gone
