"""A process that predicts where a hand may come next, so that its dry runs are known when it does.

    panel   -- places, the likeliest first --> a file
    process -- dry runs of each place -------> runtime/kept.py, where the kernel finds them

It is forked from the server of the ranks, which has loaded torch; it has a low priority, and ends
with the kernel, when a panel's run begins, and after IDLE_S without a place. A class that was typed
in a cell is unknown to it.

Cost: at most one process, with some 50 MB of its own; a known dry run is read in 1 to 3 ms.
"""

import os
import pickle
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ..core import Impossible, write_whole
from ..core.later import later

with later():
    from ..runtime.process import server

IDLE_S, LOOKS_S = 10.0, 0.05


class Ahead:
    """The process as a kernel has it, for all panels: what was asked for last counts."""

    def __init__(self):
        self.process = None
        self._lock = threading.Lock()

    def ask(self, cls: type, places: list[dict]) -> None:
        """Let it predict these settings in their order, where the lab is of this library: another
        one may print, or never end."""
        if not cls.__module__.startswith("bigtrain_lab."):
            return
        with self._lock, suppress(Impossible, OSError):
            wanted = server.room() / "ahead"
            write_whole(wanted, pickle.dumps((str(wanted), cls, places)))
            if self.process:
                self.process.join()
            if self.process is None or self.process.exitcode is not None:
                (self.process,) = server.start(1, str(wanted), __name__)

    def end(self) -> None:
        """End it."""
        with self._lock:
            if self.process:
                self.process.close()
            self.process = None


@lru_cache(maxsize=1)
def ahead(pid: int) -> Ahead:
    """That of the process with this number: a copy that was forked has one of its own."""
    return Ahead()


def main(index: int, wanted: str, cls: type, places: list[dict]) -> None:
    """All that the process does."""
    os.nice(10)
    asked, since = Path(wanted).read_bytes(), time.monotonic()
    while time.monotonic() < since + IDLE_S:
        if places:
            with suppress(Exception):  # what cannot be is the kernel's to say
                lab = cls(**places.pop(0))
                lab.explain(lab.predict())
            since = time.monotonic()
        time.sleep(0 if places else LOOKS_S)
        if (told := Path(wanted).read_bytes()) != asked:
            asked, (_, cls, places) = told, pickle.loads(told)
