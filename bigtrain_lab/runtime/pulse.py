"""Whether a process computes, and what else keeps it, as the system tells: a rank that computes
logs and prints nothing.

    computes   it used at least WORK_S of processor within WITHIN_S
    waits      it used less: a rank that waits for another, in a message, a collective or a meeting,
               was measured at 0.5 % at most
    is kept    somebody has stopped it, or a disk does not answer
"""

import time
from contextlib import suppress

import psutil

WORK_S, WITHIN_S = 0.25, 5.0  # with ten processes on two cores, a rank that computes still gets three times this
GONE = (psutil.Error, OSError)  # OSError: this process has no descriptor left to look with
STOPPED = "stopped (SIGSTOP or Ctrl-Z)"
REMEDIES = {STOPPED: "Find out who stops the processes of ranks, and run again.",
            "stopped by a debugger": "Let the debugger go on in time, or launch with a longer stall_s.",
            "in uninterruptible sleep (disk)": "See whether the disk that it uses answers, and run again."}
KEPT = dict(zip((psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_DISK_SLEEP), REMEDIES))


class Beats:
    """`count` grows while a process computes. `used_s`: the processor time that it has used so far."""

    def __init__(self, used_s: float = 0.0):
        self.count, self._used_s, self._since = 0, used_s, time.monotonic()

    def look(self, used_s: float) -> int:
        """`count`, now that the process has used so much."""
        now = time.monotonic()
        windows = (now - self._since) / WITHIN_S
        computes = used_s - self._used_s >= WORK_S * max(1, windows)
        if computes or windows > 1:
            self.count, self._used_s, self._since = self.count + computes, used_s, now
        return self.count


class Pulse:
    """A process as others see it; one that is gone does nothing."""

    def __init__(self, pid: int):
        self.pid, self._process = pid, None
        with suppress(*GONE):
            self._process = psutil.Process(pid)
        self._beats = Beats(self._cpu_s())

    def count(self) -> int:
        """Grows while the process computes, its threads included."""
        return self._beats.look(self._cpu_s())

    def kept(self) -> str:
        """What keeps the process from computing, in words; "" where nothing does."""
        return KEPT.get(self._status(), "")

    def is_alive(self) -> bool:
        """Whether it lives: not where it has ended and is not buried, nor where another process has
        its number now."""
        return self._status() not in (None, psutil.STATUS_ZOMBIE)

    def kill(self) -> None:
        """End the process and what it has started; never another one that has its number now."""
        if self._process:
            family = [self._process]
            with suppress(*GONE):
                family += self._process.children(recursive=True)
            for process in family:
                with suppress(*GONE):
                    process.kill()

    def _status(self) -> str | None:
        with suppress(*GONE):
            if self._process and self._process.is_running():
                return self._process.status()
        return None

    def _cpu_s(self) -> float:
        with suppress(*GONE):
            if self._process:
                times = self._process.cpu_times()
                return times.user + times.system
        return 0.0
