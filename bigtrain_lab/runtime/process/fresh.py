"""The library's own modules in the fork server: a rank inherits them loaded, unless a file has
changed since.

Importing them costs a fresh rank more than all else together (90 ms), yet an edit must reach the
next run. So the launcher takes the library's fingerprint before the server starts and again at each
launch: equal, and from the same folder, the rank keeps what it was forked with; otherwise it drops
all of it first and imports anew.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path

PACKAGE = __package__.split(".")[0]
ROOT = str(Path(__file__).parents[2])


def fingerprint() -> int:
    """Changes when a file of the library is added, removed or written."""
    files = [(str(path), path.stat()) for path in sorted(Path(ROOT).rglob("*.py"))]
    return hash(tuple((name, about.st_mtime_ns, about.st_size) for name, about in files))


def drop() -> None:
    """Forget every module of the library, so that the next import reads its files."""
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
        del sys.modules[name]


def enter(index: int, root: str, current: bool, payload: str, module: str) -> None:
    """The target of a process: the file `payload` has what the module's `main` is given, pickled,
    and read once the modules are right; a rank's (job, program in bytes)."""
    end_with_launcher()
    try:
        asked = Path(payload).read_bytes()
    except FileNotFoundError:  # the run was ended before this rank began
        return
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # an interrupt of the whole process group ends a rank at once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which the server holds back
    if not current or root != ROOT:
        drop()
    import_module(module).main(index, *pickle.loads(asked))


def end_with_launcher() -> None:
    """From here on this process ends with the launching one, whatever ends that, or once that wants
    it no more: then nobody holds the other end of the pipe that this one was told by.

    The kernel kills it, since a thread can do nothing while another one keeps the interpreter's
    lock: a meeting in a folder that is gone keeps it for minutes. The thread is for systems whose
    kernel cannot (macOS).
    """
    import fcntl  # not on Windows
    from multiprocessing import forkserver

    os.close(
        forkserver._forkserver._forkserver_alive_fd
    )  # the server lives while anybody has it open
    launcher = multiprocessing.parent_process().sentinel
    with suppress(AttributeError, OSError):
        fcntl.fcntl(launcher, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(launcher, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(launcher, fcntl.F_SETFL, os.O_ASYNC)
    if wait([launcher], 0):  # it had ended before
        os._exit(1)
    threading.Thread(target=_end_after, args=(launcher,), daemon=True).start()


def _end_after(launcher: int) -> None:
    wait([launcher])
    os._exit(1)
