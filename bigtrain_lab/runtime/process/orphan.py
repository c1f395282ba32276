"""Ends the fork server when its parent ends, also while it imports torch. Only the server imports
this.

The import arms a timer: multiprocessing's server looks for its parent only once it has imported
all, which takes seconds, on a busy machine many.
"""

import os
import signal

PARENT, LOOK_S = os.getppid(), 0.5


def _look(*_) -> None:
    if os.getppid() != PARENT:
        os._exit(0)


def end() -> None:
    """From here on the server looks itself."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


signal.signal(signal.SIGALRM, _look)
signal.siginterrupt(signal.SIGALRM, False)  # what reads a file meanwhile must not hear of it
signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
