"""The newest of several calls: a slider that moves on makes the answer to its last place worthless before it is there.

A call that is over soon is answered in the caller's own thread, as if there were none. A long one is left to a daemon
thread, and the kernel goes on; a newer one takes the place of one that waits, and silences one that has begun.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

STUCK_S = 10.0  # a call that takes so long may never end (a class typed in a cell can loop): the next one passes it


class Call:
    """What to compute, what to do with the answer, and whether the asker still waits for it."""

    def __init__(self, compute: Callable[[], Any], then: Callable[[Any], None]):
        self.compute, self.then = compute, then
        self.over, self.awaited, self.answer = threading.Event(), True, None


class Newest:
    """`ask` from any thread; `then` of a call that was passed by a newer one is never called."""

    def __init__(self):
        self._lock = threading.Lock()
        self._last: Call | None = None
        self._waiting: Call | None = None
        self._worker: threading.Thread | None = None
        self._began = 0.0

    def ask(self, compute: Callable[[], Any], then: Callable[[Any], None], patience_s: float | None = None) -> bool:
        """Compute, which must not raise, then call `then(answer)`. False where that takes longer than `patience_s` and comes later."""
        call = Call(compute, then)
        with self._lock:
            if self._waiting:
                self._waiting.over.set()
            self._last = self._waiting = call
            if self._worker is None or time.monotonic() - self._began > STUCK_S:
                self._began = time.monotonic()
                self._worker = threading.Thread(target=self._work, daemon=True, name="bigtrain_lab prediction")
                self._worker.start()
        call.over.wait(patience_s)
        with self._lock:
            call.awaited = False
            over, newest = call.over.is_set(), call is self._last
        if over and newest:
            then(call.answer)
        return over

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._worker is not threading.current_thread():  # it was passed
                    return
                call, self._waiting = self._waiting, None
                if call is None:
                    self._worker = None
                    return
                self._began = time.monotonic()
            call.answer = call.compute()
            with self._lock:
                call.over.set()
                left = call is self._last and not call.awaited
            if left:
                call.then(call.answer)
