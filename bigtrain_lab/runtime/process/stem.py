"""The process that all others of this library are forked from: they share the memory that torch
takes. It is run as a file, without this library, and without what its user's environment says
beyond what torch reads as it loads.

    stem ---> the server of ranks (forks.py), which it becomes: then it has all of the environment
      `-----> a copy that stays as it is ---> the process of answers (grading/inside.py), if asked
"""

import gc
import json
import os
import signal
import socket
import sys
from importlib import import_module
from runpy import run_path


def main(homes: list[str], control: int, asked: int) -> None:
    """`homes`: where torch is. The server is asked at `control`, where a line first says what it
    begins with, and the copy at `asked`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is its launcher's to hear
    sys.path += homes
    import_module("torch.fx.experimental.symbolic_shapes")  # torch, and what a first gradient loads
    gc.collect()
    gc.freeze()  # a collector that looks at what it inherits would copy the pages
    if not os.fork():
        os.close(control)
        copies(socket.socket(fileno=asked))
        os._exit(0)
    os.close(asked)
    first = open(control, "rb", 0, closefd=False).readline()
    environment, path, module, room = json.loads(first)
    os.environ.clear()
    os.environ.update(environment)
    import_module("site").main()  # an editable install may need its hooks
    sys.path[:] = path
    import_module(module).serve(control, room)


def copies(asked: socket.socket) -> None:
    """Fork a process for each socket that is handed over, and run there the file that is named with
    it, until nobody can ask any more."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what is forked here ends by itself
    while wires := (request := socket.recv_fds(asked, 4096, 1))[1]:
        if not os.fork():
            asked.close()
            sys.argv = [request[0].decode(), str(wires[0])]
            sys.dont_write_bytecode = True
            run_path(sys.argv[0], run_name="__main__")
            os._exit(0)
        os.close(wires[0])


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
