"""Ranks of a job as torchrun starts them, without it, and without each importing torch: the server
of this process's own ranks forks them.

ended = ranks_by_hand(where, ["script.py"], 2)  # (exit code, what was printed) of each
"""

import os
import pickle
import runpy
import socket
import sys
import tempfile
import textwrap
from importlib import import_module
from pathlib import Path

from bigtrain_lab.runtime.process import server

LONGEST_S = 1000.0  # of a job; pytest's own limit is less
FOREIGN = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")  # of the shell in which the tests run


def environment(**more) -> dict[str, str]:
    """Of a shell in which this library is installed."""
    return {
        **{name: value for name, value in os.environ.items() if name not in FOREIGN},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **more,
    }


def script(where: Path, text: str) -> list[str]:
    """The words that run this text there."""
    (where / "script.py").write_text(textwrap.dedent(text))
    return ["script.py"]


def forked(where: Path, words: list[str], each: list[dict[str, str]]) -> list[tuple[int, str]]:
    """Run `python *words` in that folder, once with each of these further variables."""
    with tempfile.TemporaryDirectory(dir=server.room()) as room:
        (payload := Path(room, "job")).write_bytes(pickle.dumps((str(where), words, each)))
        ranks = server.start(len(each), str(payload), __name__)
        for rank in ranks:
            rank.join(LONGEST_S)
    outputs = [Path(where, f".output-{number}").read_text() for number in range(len(each))]
    return [(rank.exitcode, output) for rank, output in zip(ranks, outputs)]


HELD = []


def free_port() -> int:
    """Held while the tests last, so that nobody else is given it before a rank listens there, which
    it may all the same."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    HELD.append(held)
    return held.getsockname()[1]


def ranks_by_hand(where, words, ranks: int, each=lambda rank: {}) -> list[tuple[int, str]]:
    """The ranks of a job as torchrun would start them, without it: (exit code, output) of each."""
    port = str(free_port())
    return forked(
        where,
        words,
        [
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                **each(rank),
            }
            for rank in range(ranks)
        ],
    )


def main(index: int, where: str, words: list[str], each: list[dict[str, str]]) -> None:
    """What `python *words` would be. Such a process ends without taking apart what it inherits,
    which would take 0.3 s."""
    os.chdir(where)
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(each[index])
    # torch has read the variable already
    import_module("torch").set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    output = os.open(f".output-{index}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for theirs in (1, 2):
        os.dup2(output, theirs)
    module = words[0] == "-m"
    sys.argv = words[module:]
    sys.path.insert(0, where)
    try:
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    finally:
        sys.stdout.flush()
    os._exit(code)
