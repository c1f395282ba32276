"""The server that ranks are forked from: it has torch loaded, so a rank costs milliseconds and not
seconds.

It is multiprocessing's fork server, with a few things seen to: it survives Ctrl-C, runs no script
again, is reached by a socket in a directory of this process (temporary.py), and may end at any
moment. Windows has no such server.
"""

import errno
import multiprocessing
import os
import selectors
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import spawn
from multiprocessing.connection import wait
from multiprocessing.context import reduction, set_spawning_popen

from ...core import Impossible
from . import fresh, temporary
from .pulse import STOPPED, Pulse

with suppress(ImportError):  # Windows, where no rank is started
    from multiprocessing import forkserver, resource_tracker

PRELOADED = [
    "bigtrain_lab.runtime.process.orphan",
    "torch",
    "torch._dynamo",
    "torch.func",
    "torch.distributed",
    "torch.optim",
    "torch.profiler._cupti_monitor",
    "numpy",
    "pydantic",
    "pydantic.fields",
    "pydantic.main",
    "pydantic.json_schema",
    "cloudpickle",
    "faulthandler",
    "zipfile",
    "bigtrain_lab.runtime.process.preload",
]
RANK = f"{fresh.PACKAGE}.runtime.process.child"
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)
NO_SERVER = (
    256  # in place of the exit code of a rank whose server is gone: no process has such a code
)
SERVER_ENDED = (
    "The server that ranks are forked from has ended (killed; out of memory?), and with it all"
    " knowledge of the ranks: they were ended too. Run again: a new server starts by itself."
)
SILENT_S = 5.0  # a server that says nothing for so long is looked at
_lock = threading.RLock()


class CannotStart(RuntimeError):
    """A rank's process could not be started; the message says why."""


def warm() -> None:
    """Start the server if there is none yet, and return at once; it loads torch meanwhile.
    Impossible where it cannot start."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise Impossible(
            "Ranks cannot be started on Windows: run this in WSL2, where a Linux has what they"
            " need."
        )
    with _lock:
        prepared()
        vars(sys.modules["__main__"]).setdefault(
            "__spec__", None
        )  # IPython's %reset takes it away, and multiprocessing asks for it
        try:
            temporary.own()
            # the server would start it, and it lets interrupts through again
            resource_tracker.ensure_running()
            with interrupts_held():
                try:
                    forkserver.ensure_running()
                # it is of the process that this is a copy of, or somebody else has heard of its end
                except ChildProcessError:
                    forget(forkserver._forkserver)
                    forkserver.ensure_running()
        except OSError as error:
            raise Impossible(
                f"The server that ranks are forked from cannot start ({error.strerror or error}):"
                " let TMPDIR name a directory that can be written, and see what keeps this machine"
                " from starting processes."
            ) from error


def forget(server) -> None:
    """Let multiprocessing begin a server of its own again."""
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None


def start(ranks: int, payload: str, unwanted: int, module: str = RANK) -> Iterator:
    """The ranks' processes, each as soon as it is there. `payload`: the file that each reads what
    it is to do from (fresh.py), `module` whose `main` does it.

    Ends early once the descriptor `unwanted` can be read. CannotStart where a process cannot be
    started.
    """
    warm()
    context, preloaded = prepared()
    current = fresh.fingerprint() == preloaded
    for index in range(ranks):
        process = context.Process(
            target=fresh.enter,
            args=(index, fresh.ROOT, current, payload, module),
            name=f"rank {index}",
        )
        try:
            process = Forked(process, unwanted)
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
    """A process that the fork server makes, as multiprocessing's own handle of it, but for what a
    server that ends or stops meanwhile leaves behind: nothing. `sentinel` can be read once the
    process has ended; `pid` is None where it was not wanted any more."""

    def __init__(self, process, unwanted: int):
        self.pid = self.exitcode = None
        told = in_bytes(process)
        self.sentinel, self._pipe = forkserver.connect_to_new_process(
            []
        )  # the process ends once nobody has the pipe open
        try:
            # first, while the server imports: it fits into the pipe, and a process that nobody
            # wants any more ends by itself
            while told:
                told = told[os.write(self._pipe, told) :]
            if self._has_forked(unwanted):
                self.pid = forkserver.read_signed(self.sentinel)
        finally:
            if self.pid is None:
                self.close()

    def _has_forked(self, unwanted: int) -> bool:
        """Wait until the server answers, or has ended; False where the process is not wanted any
        more. CannotStart where it is stopped."""
        with selectors.DefaultSelector() as ready:
            ready.register(self.sentinel, selectors.EVENT_READ)
            ready.register(unwanted, selectors.EVENT_READ)
            while not (found := [key.fd for key, _ in ready.select(SILENT_S)]):
                server = forkserver._forkserver._forkserver_pid
                if Pulse(server).kept() == STOPPED:
                    raise CannotStart(
                        f"The server that ranks are forked from is {STOPPED}: let it go on (kill"
                        f" -CONT {server}), and run again."
                    )
        return self.sentinel in found

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended, and note its exit code."""
        if self.exitcode is None and wait([self.sentinel], timeout):
            try:
                self.exitcode = forkserver.read_signed(self.sentinel)
            except EOFError:
                self.exitcode = NO_SERVER

    def close(self) -> None:
        os.close(self.sentinel)
        os.close(self._pipe)


def in_bytes(process) -> bytes:
    """What the server's copy reads: how to prepare itself, but for the script that runs here, and
    the process that it becomes."""
    prepared = {
        name: value
        for name, value in spawn.get_preparation_data(process.name).items()
        if not name.startswith("init_main")
    }
    set_spawning_popen(
        process
    )  # as multiprocessing does: a process carries a key that must not be pickled for anything else
    try:
        return bytes(reduction.ForkingPickler.dumps(prepared)) + bytes(
            reduction.ForkingPickler.dumps(process)
        )
    finally:
        set_spawning_popen(None)


@cache
def prepared() -> tuple:
    """What forks from a server that has PRELOADED, and the library's fingerprint before it loaded
    that."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context, fresh.fingerprint()


@contextmanager
def interrupts_held():
    """Hear Ctrl-C at the end of this, and never in a server that starts meanwhile; a rank listens
    again (fresh.py)."""
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
