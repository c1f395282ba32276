"""The temporary directory of this process: sockets, programs on their way, and the files in which
ranks meet.

    <TMPDIR>/bigtrain-<random>/owner           locked by the process while it lives (flock(2)),
                                               whatever ends it
                               listener-*      the socket of the fork server
                               run-<random>    of one run; removed at its end

A process that was killed removes nothing: whoever comes next does, where the owner's lock is free.
A directory of another user, without an owner's file, or behind a symbolic link is left alone.
"""

import multiprocessing
import os
import shutil
import stat
import tempfile
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path

from ...core import Impossible

try:
    import fcntl
except ImportError:  # Windows, where no rank is started
    pass

PREFIX, OWNER = "bigtrain-", "owner"
LONGEST_SOCKET = (
    103  # bytes of a socket's name, by the shorter limit of two (macOS; Linux takes 107)
)
SHORT = ("/tmp", "/var/tmp")  # where sockets may be instead


def own() -> Path:
    """The directory of this process, for this user alone; made at the first call, and removed when
    the process ends. Impossible where there is no room for it."""
    return _own(os.getpid())


@lru_cache(maxsize=1)
def _own(pid: int) -> Path:
    """Each process makes its own: a copy that was forked must not remove that of the process that
    it is a copy of."""
    from multiprocessing import util

    base = _base()
    _sweep(base)
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        lock = os.open(path / OWNER, os.O_RDWR | os.O_CREAT, 0o600)  # open until the process ends
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                break
        os.close(lock)  # someone who sweeps came between
    util.Finalize(
        None, shutil.rmtree, args=(path, True), exitpriority=-100
    )  # unlike atexit's, not in a copy that was forked
    multiprocessing.current_process()._config["tempdir"] = str(
        path
    )  # where multiprocessing keeps its sockets
    return path


def _base() -> str:
    """Where temporary files are kept, or another place where that has too long a name for a
    socket."""
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) + len(f"/{PREFIX}12345678/listener-12345678") <= LONGEST_SOCKET:
        return usual
    if short := next((place for place in SHORT if os.access(place, os.W_OK | os.X_OK)), None):
        return short
    raise Impossible(
        f"The server that ranks are forked from cannot start ({usual} is too long a name for a"
        f" socket to be in, and {' and '.join(SHORT)} cannot be written): let TMPDIR name a"
        " directory with a shorter one."
    )


def _sweep(base: str) -> None:
    """Remove what killed processes of this user have left."""
    with suppress(OSError):
        for entry in os.scandir(base):
            if entry.name.startswith(PREFIX):
                remove_abandoned(entry.path)


def remove_abandoned(path) -> None:
    """Remove such a directory where the process that made it lives no more; else leave it."""
    with suppress(OSError), ExitStack() as opened:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        opened.callback(os.close, folder)
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened.callback(os.close, lock)
        if stat.S_ISREG(os.fstat(lock).st_mode):
            # BlockingIOError where its owner lives
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)


def _remove(path) -> None:
    """Remove the directory of a dead process. The owner's file goes last: whoever is interrupted
    here leaves what the next one can remove."""
    gone = f"{path}.gone"
    os.rename(path, gone)  # a rank that still ends cannot write into it by its name
    for entry in [*os.scandir(gone)]:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name != OWNER:
            os.unlink(entry.path)
    shutil.rmtree(gone, ignore_errors=True)
