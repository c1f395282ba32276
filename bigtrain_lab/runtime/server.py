"""The server that ranks are forked from: it has torch loaded, so a rank costs milliseconds and not seconds.

It is multiprocessing's fork server, with a few things seen to: it survives Ctrl-C, runs no script again, and is reached
by a socket whose name is short enough, wherever temporary files are kept. On Windows each rank is a fresh interpreter.
"""

import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from ..core import Impossible
from . import fresh
from .process import Job

PRELOADED = ["torch", "torch._dynamo", "torch.func", "torch.distributed", "torch.optim", "torch.profiler._cupti_monitor", "numpy",
             "pydantic", "pydantic.fields", "pydantic.main", "pydantic.json_schema", "cloudpickle", "faulthandler", "zipfile",
             "bigtrain_lab.runtime.preload"]
LONGEST_SOCKET = 103  # bytes of a socket's name, by the shorter limit of two (macOS; Linux takes 107)
SHORT = ("/tmp", "/var/tmp")  # where sockets may be instead
NO_SERVER = 255  # what multiprocessing says of a rank whose server is gone
SERVER_ENDED = ("The server that ranks are forked from has ended (killed; out of memory?), and with it all knowledge of the ranks: they "
                "were ended too. Run again: a new server starts by itself.")
_lock = threading.RLock()
_preloaded: int | None = None  # the library's fingerprint before the server loaded it


def warm() -> None:
    """Start the server if there is none yet, and return at once; it loads torch meanwhile. Impossible where it cannot start."""
    with _lock:
        context = _context()
        if context.get_start_method() == "forkserver":
            from multiprocessing import forkserver, resource_tracker  # not on Windows
            try:
                shorten_sockets()
                resource_tracker.ensure_running()  # the server would start it, and it lets interrupts through again
                with hidden_main(), interrupts_held():
                    forkserver.ensure_running()
            except OSError as error:
                raise Impossible(f"The server that ranks are forked from cannot start ({error.strerror or error}): let TMPDIR name a "
                                 "directory that can be written, and see what keeps this machine from starting processes.") from error


def shorten_sockets() -> None:
    """Let multiprocessing keep its sockets where a name is short enough, however long TMPDIR is; removed when this process ends."""
    from multiprocessing import util
    if len(os.fsencode(util.get_temp_dir())) + len("/listener-12345678") <= LONGEST_SOCKET:
        return
    where = next((place for place in SHORT if os.access(place, os.W_OK | os.X_OK)), None)
    if where is None:
        raise Impossible(f"The server that ranks are forked from cannot start ({tempfile.gettempdir()} is too long a name for a socket to "
                         f"be in, and {' and '.join(SHORT)} cannot be written): let TMPDIR name a directory with a shorter one.")
    short = tempfile.mkdtemp(prefix="bigtrain-", dir=where)  # which nobody else may enter
    util.Finalize(None, shutil.rmtree, args=(short, True), exitpriority=-100)  # unlike atexit's, not in a copy that was forked
    multiprocessing.current_process()._config["tempdir"] = short


def start(ranks: int, job: Job, travelling: bytes) -> list:
    """The ranks' processes, started; none of them where one cannot start. Call `warm` before."""
    processes = []
    payload = pickle.dumps((job, travelling))
    with _lock, hidden_main():
        context = _context()
        current = fresh.fingerprint() == _preloaded
        try:
            for index in range(ranks):
                process = context.Process(target=fresh.enter, args=(index, fresh.ROOT, current, payload), name=f"rank {index}")
                process.start()
                processes.append(process)
                # Its exit is read once, by the watch: multiprocessing's own clean-up, in another thread, would take it away.
                getattr(multiprocessing.process, "_children", set()).discard(process)
        except BaseException:
            for process in processes:
                process.kill()
                process.join()
                process.close()
            shutil.rmtree(Path(job.store).parent, ignore_errors=True)
            raise
    return processes


def _context():
    """Fork from a server that has PRELOADED; a fresh interpreter on Windows."""
    global _preloaded
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    if _preloaded is None:
        _preloaded = fresh.fingerprint()
    return context


@contextmanager
def interrupts_held():
    """Hear Ctrl-C at the end of this, and never in a server that starts meanwhile; a rank listens again (fresh.py)."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield  # Python interrupts its main thread only; Windows has no mask to inherit
        return
    heard = []
    listener = signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what a new process inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, listener or signal.SIG_DFL)
    if heard:
        raise KeyboardInterrupt


@contextmanager
def hidden_main():
    """Let the start method find no script in `__main__`: it would run it again in every rank."""
    script, names = vars(sys.modules["__main__"]), ("__file__", "__spec__")
    before = {name: script[name] for name in names if name in script}  # IPython's %reset leaves neither
    script.update(dict.fromkeys(names))
    try:
        yield
    finally:
        for name in names:
            del script[name]
        script.update(before)


def has_ended() -> bool:
    """Whether the server lives no longer, whatever the ranks do."""
    from multiprocessing import forkserver  # not on Windows

    import psutil

    pid = forkserver._forkserver._forkserver_pid
    try:
        return pid is not None and psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
