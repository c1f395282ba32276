"""A run as it happens: a daemon thread reads its directory and tells the panel, at most ten times a second.

A thread, since a blocking cell stops the kernel's own callbacks but no thread; and as the browser cannot say that it is
behind, a reading that took long is followed by a longer pause.
"""

import threading
import time
from collections.abc import Callable

PAUSE_S = 0.1
BUSY = 4  # pause at least so many times as long as the reading took


def progress(trace, expected: int, steps: int, spent_s: float, now: str = "") -> tuple[str, float]:
    """How far a run is, by the boxes that it has drawn of those `expected`, and what its ranks are
    at `now`: in words, and as a share."""
    share = min(1.0, len(trace.spans()) / max(1, expected))
    at = f"step {min(steps, 1 + int(share * steps))} of {steps}" if trace.spans() else "starting"
    return f"running, {at}; {spent_s:.1f} s{f'; {now}' if now else ''}", share


def follow(run, changed: Callable[[], None], ended: Callable[[], None]) -> threading.Thread:
    """Call `changed()` while the run goes on and `ended()` once, after it; returns the thread."""
    def watch():
        while run.state == "running":
            began = time.monotonic()
            changed()
            spent = time.monotonic() - began
            until = time.monotonic() + max(PAUSE_S - spent, BUSY * spent)
            while run.state == "running" and time.monotonic() < until:
                time.sleep(0.02)
        ended()

    thread = threading.Thread(target=watch, daemon=True, name="bigtrain_lab panel")
    thread.start()
    return thread
