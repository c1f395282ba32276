"""The server that ranks are forked from, as it runs: it has torch loaded already, so a rank costs
milliseconds and not seconds.

    launcher -- control --> server      a request: the ends of two pipes
    launcher -- asked ----> rank        what the rank is to do; nobody writes there later, and it is
                                        closed when the launcher ends, or wants the rank no more
    server   -- told -----> launcher    its pid, then its exit code

The server ends when nobody can ask any more, and with it goes the room: the folder in which runs
keep their programs and meet. It outlives a file that does not import, such as an experiment in the
middle of an edit: the rank that imports that file tells its error.
"""

import gc
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pkgutil import iter_modules

PACKAGE = __package__.split(".")[0]
ROOT = str(Path(__file__).parents[2])
LOADED = (
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
    """All that the server does. It is asked at `control`."""
    for name in LOADED:
        with suppress(Exception):  # a file that does not import
            import_module(name)
    gc.freeze()  # a rank's collector need not look at what it inherits, and copy the pages
    asking, told = socket.socket(fileno=control), {}  # pid -> where its exit code is told
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    ends = False
    while not ends or told:
        ready = wait([woken] if ends else [woken, asking])
        if asking in ready:
            _, pipes, _, _ = socket.recv_fds(asking, 1, 2)
            ends = not pipes
            if pipes:
                fork(*map(Connection, pipes), told, (control, woken, wakes))
        if woken in ready:
            os.read(woken, 1000)
            bury(told)
    shutil.rmtree(room, ignore_errors=True)


def fork(
    asked: Connection, tells: Connection, told: dict[int, Connection], own: tuple[int, ...]
) -> None:
    """Make a process and tell its pid, or minus the error's number. In the process this does not
    return, and `own` and what else is the server's is closed: an answer that writes there would end
    the server."""
    try:
        pid = os.fork()
    except OSError as error:
        pid = -error.errno
    if not pid:
        signal.set_wakeup_fd(-1)
        for each in (tells, *told.values()):
            each.close()
        for each in own:
            os.close(each)
        try:
            become(asked)
        except Exception:  # such as of a file that does not import
            traceback.print_exc()
        finally:
            os._exit(1)
    with suppress(OSError):  # nobody wants to know
        tells.send(pid)
    if pid > 0:
        told[pid] = tells


def bury(told: dict[int, Connection]) -> None:
    """Tell the exit codes of those that have ended."""
    for pid in [*told]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with suppress(OSError):
                told[pid].send(os.waitstatus_to_exitcode(status))
            del told[pid]


def become(asked: Connection) -> None:
    """What was asked for: the `main` of a module, of a process's number and what a file has,
    pickled. The library's own modules are inherited loaded, since to import them costs a fresh rank
    more than all else together (90 ms), unless a file has changed since."""
    index, module, payload, current, sys.path, sys.argv = asked.recv()
    end_with(asked)
    try:
        given = Path(payload).read_bytes()
    except FileNotFoundError:  # the run was ended before this rank began
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of all ends a rank at once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # which the server holds back
    if not current:
        for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
            del sys.modules[name]
    import_module(module).main(index, *pickle.loads(given))


def end_with(asked: Connection) -> None:
    """From here on this process ends with the launching one, whatever ends that, or once that wants
    it no more: then nobody holds the other end of the pipe.

    The kernel kills it, since a thread can do nothing while another one keeps the interpreter's
    lock: a meeting in a folder that is gone keeps it for minutes. The thread is for systems whose
    kernel cannot (macOS).
    """
    import fcntl  # not on Windows

    with suppress(AttributeError, OSError):
        fcntl.fcntl(asked, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(asked, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(asked, fcntl.F_SETFL, os.O_ASYNC)
    if wait([asked], 0):  # it had ended before
        os._exit(1)
    threading.Thread(target=lambda: wait([asked]) and os._exit(1), daemon=True).start()
