"""The last that the fork server imports, and nobody else: what every rank will need of this
library.

The server must outlive a file that does not import, such as an experiment in the middle of an edit:
it then drops everything, and the rank that imports that file tells its error. The server ends after
its launcher and all ranks, and removes the directory of a launcher that was killed.
"""

import atexit
import gc
import time
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path

from . import fresh, orphan, temporary

# for the launcher to be gone wholly: a process that dies lets go of its pipe before its lock
LAST_S = 1.0


def remove_room() -> None:
    room, until = Path(forkserver._forkserver._forkserver_address).parent, time.monotonic() + LAST_S
    while room.exists() and time.monotonic() < until:
        temporary.remove_abandoned(room)
        time.sleep(0.02)


atexit.register(remove_room)  # a rank leaves by os._exit
try:
    for _name in ("runtime.process.child", "experiments"):
        import_module(f"{fresh.PACKAGE}.{_name}")
except Exception as error:
    fresh.drop()
    raise ImportError(str(error)) from error  # which the server passes over
finally:
    gc.freeze()  # a rank's collector need not look at what it inherits, and copy the pages
    orphan.end()
