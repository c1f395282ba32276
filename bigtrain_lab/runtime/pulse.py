"""Whether a process computes, and what else keeps it, as the system tells: a rank that computes
logs and prints nothing.

    computes   it used at least WORK_S of processor since it was last counted, and SHARE of the time
               in between
    waits      it used less: a rank that waits for another, in a message, a collective or a meeting,
               was measured at 0.5 % at most
    is kept    somebody has stopped it, or a disk does not answer
"""

import time
from contextlib import suppress

import psutil

WORK_S = 0.25
SHARE = 0.05  # with ten processes on two cores, a rank that computes still gets three times this
STOPPED = "stopped (SIGSTOP or Ctrl-Z)"
KEPT = {psutil.STATUS_STOPPED: STOPPED,
        psutil.STATUS_TRACING_STOP: "stopped by a debugger",
        psutil.STATUS_DISK_SLEEP: "in uninterruptible sleep (disk)"}
REMEDIES = {KEPT[psutil.STATUS_STOPPED]: "Find out who stops the processes of ranks, and run again.",
            KEPT[psutil.STATUS_TRACING_STOP]: "Let the debugger go on in time, or launch with a longer stall_s.",
            KEPT[psutil.STATUS_DISK_SLEEP]: "See whether the disk that it uses answers, and run again."}


class Pulse:
    """A process as others see it. `beats` grows while it computes, its threads included; one that
    is gone does nothing."""

    def __init__(self, pid: int):
        self.pid, self.beats, self._process = pid, 0, None
        with suppress(psutil.Error):
            self._process = psutil.Process(pid)
        self._used_s, self._since = self._cpu_s(), time.monotonic()

    def count(self) -> int:
        """`beats`, after a look at what the process has used since it last counted as computing."""
        used_s, now = self._cpu_s(), time.monotonic()
        if used_s - self._used_s >= max(WORK_S, SHARE * (now - self._since)):
            self.beats, self._used_s, self._since = self.beats + 1, used_s, now
        return self.beats

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
            with suppress(psutil.Error):
                family += self._process.children(recursive=True)
            for process in family:
                with suppress(psutil.Error):
                    process.kill()

    def _status(self) -> str | None:
        with suppress(psutil.Error):
            if self._process and self._process.is_running():
                return self._process.status()
        return None

    def _cpu_s(self) -> float:
        with suppress(psutil.Error):
            if self._process:
                times = self._process.cpu_times()
                return times.user + times.system
        return 0.0
