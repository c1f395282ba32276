"""The way to the server that ranks are forked from (forks.py): it is started once, asked for
processes, and may end at any moment. Windows has no such server.

Its room is a folder for this user alone, where runs keep programs on their way and meet. It removes
the room when this process ends, whatever ends it.
"""

import atexit
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from functools import lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import wait
from multiprocessing.util import _args_from_interpreter_flags
from pathlib import Path

from ...core import Impossible, refuse
from . import forks, stem
from .pulse import STOPPED, Pulse

RANK = f"{forks.PACKAGE}.runtime.process.child"
NO_SERVER = (
    256  # in place of the exit code of a rank whose server is gone: no process has such a code
)
SERVER_ENDED = (
    "The server that ranks are forked from has ended (killed; out of host memory?), and with it all"
    " knowledge of the ranks: they were ended too. Run again: a new server starts by itself."
)
SILENT_S = 5.0  # a server that says nothing for so long is looked at
PACKAGES = ("torch", "numpy", "pydantic", "cloudpickle")  # and what lies beside them
# Of the environment, what Python, the loader and torch read as they begin.
READ = re.compile(
    "LD_|DYLD_|PYTHONH|MALLOC_|(OMP|KMP|MKL|OPENBLAS|ATEN)_|(PY)?TORCH|CUDA|NCCL|TMPDIR"
)
_lock = threading.RLock()


def homes() -> set[str]:
    """Where torch and its neighbours are installed."""
    return {str(Path(importlib.util.find_spec(name).origin).parents[1]) for name in PACKAGES}


class Server:
    """A server as this process has it. It is asked at `control`, and the copy of what it began as
    at `copies` (stem.py)."""

    def __init__(self):
        self.fingerprint = forks.fingerprint()  # before it loads the library
        self.room = tempfile.mkdtemp(prefix="bigtrain-")
        (self.control, theirs), (self.copies, asked) = socket.socketpair(), socket.socketpair()
        given = [theirs.fileno(), asked.fileno()]
        with theirs, asked:
            self.process = subprocess.Popen(
                # the flags that multiprocessing passes on to its own processes, and no site
                [
                    *(sys.executable, *_args_from_interpreter_flags(), "-s", "-P", "-S"),
                    *(stem.__file__, json.dumps([sorted(homes()), *given])),
                ],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if READ.match(name)},
            )
        self.control.sendall(
            json.dumps([dict(os.environ), sys.path, forks.__name__, self.room]).encode() + b"\n"
        )
        atexit.register(self.forget, os.getpid())

    def forget(self, owner: int) -> None:
        """At the end of the process that has it, remove the room of a server that was killed."""
        if os.getpid() == owner and self.process.poll() is not None:
            shutil.rmtree(self.room, ignore_errors=True)


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
    refuse(
        (
            not hasattr(os, "fork"),
            "Ranks cannot be started on Windows: run this in WSL2, where a Linux has what they"
            " need.",
        )
    )
    try:
        with _lock:
            server = started(os.getpid())
            if server.process.poll() is not None:
                server.control.close(), server.copies.close()
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


def start(count: int, payload: str, module: str = RANK) -> list["Forked"]:
    """Ask for so many processes, and return at once. `payload`: the file that each reads what it is
    to do from (forks.py), `module` whose `main` does it. OSError where this process can open no
    more files."""
    server = running()
    told = module, payload, forks.fingerprint() == server.fingerprint, sys.path, sys.argv
    return [Forked(server, (index, *told)) for index in range(count)]


class Forked:
    """A process that the server makes, and kills once this is closed. `sentinel` can be read when
    there is news for `join`; `pid` and `exitcode` are None until then."""

    def __init__(self, server: Server, request: tuple):
        self.pid = self.exitcode = None
        self.pulse, self._server, self._asked = Pulse(0), server.process.pid, time.monotonic()
        self.sentinel, theirs = Pipe()
        with theirs, suppress(ConnectionError):  # it has ended, and nobody has the other end
            self.sentinel.send(request)
            socket.send_fds(server.control, [b"."], [theirs.fileno()])

    def join(self, timeout: float = 0.0) -> None:
        """Note what the server tells until the process has ended, for so long at most. OSError
        where it cannot fork; Impossible where it is stopped."""
        until = time.monotonic() + timeout
        while self.exitcode is None:
            left = max(0.0, until - time.monotonic())
            if wait([self.sentinel], min(left, SILENT_S)):
                try:
                    what, number = self.sentinel.recv()
                except (EOFError, OSError):
                    what, number = "exitcode", NO_SERVER
                if what == "errno":
                    raise OSError(number, os.strerror(number))
                setattr(self, what, number)
                self.pulse = Pulse(self.pid) if what == "pid" else self.pulse
            elif self.pid is None and self._is_stopped():
                raise Impossible(
                    f"The server that ranks are forked from is {STOPPED}: let it go on (kill"
                    f" -CONT {self._server}), and run again."
                )
            elif not left:
                return

    def _is_stopped(self) -> bool:
        """Whether the server has not answered for long, since it is stopped."""
        return time.monotonic() - self._asked > SILENT_S and Pulse(self._server).kept() == STOPPED

    def close(self) -> None:
        self.sentinel.close()


@contextmanager
def interrupts_held():
    """Hear Ctrl-C at the end of this, where this is the main thread, which alone is interrupted."""
    heard, main = [], threading.current_thread() is threading.main_thread()
    listener = signal.signal(signal.SIGINT, lambda *_: heard.append(True)) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, listener or signal.SIG_DFL)
    if heard:
        raise KeyboardInterrupt
