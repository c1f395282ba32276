"""Whether a run goes on, by what its ranks log and print: one rule for whoever watches it.

    works       a log or an output has grown since the last look
    deadlock    nothing has, and twice the logs say the same knot of waits (waits.py): certain, without a time limit
    hangs       nothing has for the stall limit
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from . import diagnose
from .waits import Doing


class Progress:
    """Follows the ranks' logs in the job's directory.

    stall_s   the stall limit
    printed   a number that changes when a rank has printed, where outputs are not kept in the directory
    """

    def __init__(self, job, stall_s: float, printed: Callable[[], int] = lambda: 0):
        self._directory, self._stall_s, self._printed = Path(job.directory), stall_s, printed
        ranks = range(job.mesh.size)
        self._files = [job.file("events", rank, "jsonl") for rank in ranks] + [job.file("rank", rank, "log") for rank in ranks]
        self._doings = [Doing(self._directory, rank) for rank in ranks]
        self._grown, self._seen, self._suspected = time.monotonic(), None, None

    def doings(self) -> list[Doing]:
        """What each rank is at, as its log says now."""
        for doing in self._doings:
            doing.follow()
        return self._doings

    def trouble(self, ask_for_stacks: Callable[[], None]) -> str | None:
        """The diagnosis of a run that will not go on by itself; None where it may. Called at each look. Ranks are asked for
        their stacks before it is written."""
        if (now := (self._printed(), *map(size, self._files))) != self._seen:
            self._grown, self._seen, self._suspected = time.monotonic(), now, None
            return None
        suspected, self._suspected = self._suspected, diagnose.deadlock(self.doings())
        if self._suspected and self._suspected == suspected:  # with nothing written between
            ask_for_stacks()
            return self._suspected + diagnose.lines(self._directory, self._doings)
        if time.monotonic() - self._grown > self._stall_s:
            ask_for_stacks()
            return diagnose.hang(self._directory, self.doings(), self._stall_s)
        return None


def size(path: Path) -> int:
    """Bytes of a file, 0 where there is none. Opened, since a shared disk tells the true size to nobody else."""
    try:
        with open(path, "rb") as file:
            return file.seek(0, os.SEEK_END)
    except OSError:
        return 0


class Counted:
    """An output that counts what is written to it, for ranks whose outputs go elsewhere than into the directory."""

    def __init__(self, stream):
        self.stream, self.writes = stream, 0

    def write(self, text):
        self.writes += 1
        return self.stream.write(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)
