"""The way to the server that ranks are forked from (forks.py): it is started once, asked for
processes, and may end at any moment. Windows has no such server.

Its room is a folder for this user alone, where runs keep programs on their way and meet. It removes
the room when this process ends, whatever ends it.
"""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import wait
from multiprocessing.util import _args_from_interpreter_flags
from pathlib import Path

from ...core import Impossible
from . import forks
from .pulse import STOPPED, Pulse

RANK = f"{forks.PACKAGE}.runtime.process.child"
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)
NO_SERVER = (
    256  # in place of the exit code of a rank whose server is gone: no process has such a code
)
SERVER_ENDED = (
    "The server that ranks are forked from has ended (killed; out of memory?), and with it all"
    " knowledge of the ranks: they were ended too. Run again: a new server starts by itself."
)
SILENT_S = 5.0  # a server that says nothing for so long is looked at
SERVE = "import sys; sys.path[:] = {}; from {} import serve; serve({}, {!r})"
_lock = threading.RLock()


class CannotStart(RuntimeError):
    """A rank's process could not be started; the message says why."""


class Server:
    """A server as this process has it."""

    def __init__(self):
        self.fingerprint = forks.fingerprint()  # before it loads the library
        self.room = tempfile.mkdtemp(prefix="bigtrain-")
        self.control, theirs = socket.socketpair()
        with theirs, interrupts_held():
            code = SERVE.format(sys.path, forks.__name__, theirs.fileno(), self.room)
            self.process = subprocess.Popen(
                # the flags that multiprocessing passes on to its own processes
                [sys.executable, *_args_from_interpreter_flags(), "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )


@lru_cache(maxsize=1)
def started(pid: int) -> Server:
    """The server of the process with this number: a copy that was forked has one of its own."""
    return Server()


def warm() -> None:
    """Start the server if there is none yet, and return at once; it loads torch meanwhile.
    Impossible where it cannot start."""
    running()


def running() -> Server:
    """The server of this process, which is started if there is none."""
    if not hasattr(os, "fork"):
        raise Impossible(
            "Ranks cannot be started on Windows: run this in WSL2, where a Linux has what they"
            " need."
        )
    try:
        with _lock:
            server = started(os.getpid())
            if server.process.poll() is not None:
                server.control.close()
                shutil.rmtree(server.room, ignore_errors=True)
                started.cache_clear()
                server = started(os.getpid())
            return server
    except OSError as error:
        raise Impossible(
            f"The server that ranks are forked from cannot start ({error.strerror or error}):"
            " let TMPDIR name a directory that can be written, and see what keeps this machine"
            " from starting processes."
        ) from error


def room() -> Path:
    """The folder of this process, which goes with it. Impossible where there is no room for it."""
    return Path(running().room)


def start(
    ranks: int, payload: str, unwanted: Sequence[int] = (), module: str = RANK
) -> Iterator["Forked"]:
    """The ranks' processes, each as soon as it is there. `payload`: the file that each reads what
    it is to do from (forks.py), `module` whose `main` does it.

    Ends early once one of the descriptors `unwanted` can be read. CannotStart where a process
    cannot be started.
    """
    server = running()
    current = forks.fingerprint() == server.fingerprint
    for index in range(ranks):
        request = index, module, payload, current, sys.path, sys.argv
        try:
            process = Forked(server, request, unwanted)
            if process.pid is None:
                return
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise CannotStart(
                    f"Rank {index} cannot start ({error.strerror}): end other programs, or ask for"
                    " fewer ranks."
                ) from None
            raise CannotStart(
                f"Rank {index} cannot start: the server that it is forked from has ended (killed;"
                " out of memory?). Run again: a new server starts by itself."
            ) from None
        yield process


class Forked:
    """A process that the server makes. `sentinel` can be read once it has ended; `pid` is None
    where it was not wanted any more."""

    def __init__(self, server: Server, request: tuple, unwanted: Sequence[int]):
        self.pid = self.exitcode = None
        asked, self._keeps = Pipe(duplex=False)  # the process ends once nobody has this end open
        self.sentinel, tells = Pipe(duplex=False)
        with asked, tells:
            socket.send_fds(server.control, [b"."], [asked.fileno(), tells.fileno()])
        self._keeps.send(request)
        if self._has_forked(server.process.pid, unwanted):
            told = self.sentinel.recv()
            if told < 0:
                raise OSError(-told, os.strerror(-told))
            self.pid = told

    def _has_forked(self, server: int, unwanted: Sequence[int]) -> bool:
        """Wait until the server answers, or has ended; False where the process is not wanted any
        more. CannotStart where it is stopped."""
        while not (ready := wait([self.sentinel, *unwanted], SILENT_S)):
            if Pulse(server).kept() == STOPPED:
                raise CannotStart(
                    f"The server that ranks are forked from is {STOPPED}: let it go on (kill"
                    f" -CONT {server}), and run again."
                )
        return self.sentinel in ready

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, and note its exit code."""
        if self.exitcode is None and wait([self.sentinel], timeout):
            try:
                self.exitcode = self.sentinel.recv()
            except EOFError:
                self.exitcode = NO_SERVER

    def close(self) -> None:
        self.sentinel.close()
        self._keeps.close()


@contextmanager
def interrupts_held():
    """Hear Ctrl-C at the end of this, and never in a server that starts meanwhile; a rank listens
    again (forks.py)."""
    heard, main = (
        [],
        threading.current_thread() is threading.main_thread(),
    )  # which alone is interrupted
    listener = signal.signal(signal.SIGINT, lambda *_: heard.append(True)) if main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what a new process inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if main:
            signal.signal(signal.SIGINT, listener or signal.SIG_DFL)
    if heard:
        raise KeyboardInterrupt
