"""The server that ranks are forked from, as it runs: it has torch loaded already, so a rank costs
milliseconds and not seconds.

    launcher -- control -----> server    a request: the end of a connection, with what is wanted
    launcher <- connection --> server    the process's pid, then its exit code

A process lives as long as the launcher keeps its end of the connection, which goes with it: then
the server kills the process. The kernel does so where the server itself is gone (Linux).

The server ends when nobody can ask any more, and with it goes the room: the folder in which runs
keep their programs and meet. It outlives a file that does not import, such as an experiment in the
middle of an edit: the rank that imports that file tells its error.

Its processes are SCHED_BATCH, so that whom a send wakes does not take the core of its sender. Gloo
holds the connection during a send, and its thread spins until it has it: with two ranks on two busy
cores an exchange of 2 KiB took 3.4 ms of wall and 1.3 ms of CPU, and takes 0.14 ms and 0.06 ms.
"""

import ctypes
import gc
import os
import pickle
import shutil
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pkgutil import iter_modules

PACKAGE = __package__.split(".")[0]
ROOT = str(Path(__file__).parents[2])
PR_SET_PDEATHSIG = 1  # of prctl: what a process gets when its parent ends
LATER = f"{PACKAGE}.core.later"
LOADED = (
    "torch",
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
    f"{PACKAGE}.runtime.process.child",
    f"{PACKAGE}.experiments",
    # what labs import late, but for torch's compiler, which takes seconds
    *(
        f"{PACKAGE}.{wing}.{file.name}"
        for wing in ("train", "models", "data")
        for file in iter_modules([f"{ROOT}/{wing}"])
    ),
    f"{PACKAGE}.techniques.data_loader",
    f"{PACKAGE}.techniques.mesh_tensor",
    f"{PACKAGE}.techniques.parameter_server",
    f"{PACKAGE}.techniques.reducers",
    f"{PACKAGE}.techniques.saved",
)


def fingerprint() -> int:
    """Changes when a file of the library is added, removed or written."""
    files = [(str(path), path.stat()) for path in sorted(Path(ROOT).rglob("*.py"))]
    return hash(tuple((name, about.st_mtime_ns, about.st_size) for name, about in files))


def serve(control: int, room: str) -> None:
    """All that the server does. It is asked at `control`. Ctrl-C is its launcher's to hear."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(Exception):
        import_module(LATER).put_compiler_to_sleep()  # also in each rank
    for name in LOADED:
        with suppress(Exception):  # a file that does not import
            import_module(name)
    gc.freeze()  # a rank's collector need not look at what it inherits, and copy the pages
    asking, told = (
        socket.socket(fileno=control),
        {},
    )  # pid -> its connection, None once it is killed
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    ends = False
    while not ends or told:
        ready = wait([woken, *([] if ends else [asking]), *filter(None, told.values())])
        if asking in ready:
            _, given, _, _ = socket.recv_fds(asking, 1, 1)
            ends = not given
            if given:
                fork(Connection(*given), told, (control, woken, wakes))
        if woken in ready:
            os.read(woken, 1000)
            bury(told)
        for pid, connection in told.items():
            if connection in ready:  # nobody wants it any more
                told[pid] = None
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(room, ignore_errors=True)


def fork(connection: Connection, told: dict[int, Connection | None], own: tuple[int, ...]) -> None:
    """Make a process and tell its pid, or the error's number. In the process this does not
    return, and `own` and what else is the server's is closed: an answer that writes there would end
    the server."""
    asked, server = connection.recv_bytes(), os.getpid()
    try:
        pid = os.fork()
        news = "pid", pid
    except OSError as error:
        news = "errno", error.errno
        pid = None
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for each in (connection, *filter(None, told.values())):
            each.close()
        for each in own:
            os.close(each)
        try:
            become(server, *pickle.loads(asked))
        except Exception:  # such as of a file that does not import
            traceback.print_exc()
        finally:
            os._exit(1)
    with suppress(OSError):  # nobody wants to know
        connection.send(news)
    if pid:
        told[pid] = connection


def bury(told: dict[int, Connection | None]) -> None:
    """Tell the exit codes of those that have ended."""
    for pid in [*told]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended and (connection := told.pop(pid)):
            with suppress(OSError):
                connection.send(("exitcode", os.waitstatus_to_exitcode(status)))


def become(
    server: int, index: int, module: str, payload: str, current: bool, path: list, argv: list
) -> None:
    """What was asked for: the `main` of a module, of a process's number and what a file has,
    pickled. The library's own modules are inherited loaded, since to import them costs a fresh rank
    more than all else together (90 ms), unless a file has changed since."""
    with suppress(AttributeError, OSError):  # the kernel is no Linux, or does not allow it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    sys.path, sys.argv = path, argv
    try:
        given = Path(payload).read_bytes()
    except FileNotFoundError:  # the run was ended before this rank began
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of all ends a rank at once
    if not current:
        for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
            del sys.modules[name]
    if os.getppid() == server:  # else it has ended, and nobody ends this one
        import_module(module).main(index, *pickle.loads(given))
