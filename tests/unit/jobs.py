"""Ranks of a job as torchrun starts them, without it, and without each importing torch: one process
does, and forks them.

ended = ranks_by_hand(where, ["script.py"], 2)  # (exit code, what was printed) of each
"""

import gc
import json
import os
import runpy
import socket
import subprocess
import sys
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path


def environment(**more) -> dict[str, str]:
    """Of a shell in which this library is installed."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
    }
    return {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **more,
    }


@cache
def forker() -> subprocess.Popen:
    """The process that forks ranks; it ends with this one, since its input does."""
    return subprocess.Popen(
        [sys.executable, __file__],
        env=environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def forked(where: Path, words: list[str], each: list[dict[str, str]]) -> list[tuple[int, str]]:
    """Run `python *words` in that folder, once with each of these further variables; all end before
    one's exit code is asked for, as torchrun asks a moment later than a process ends: others may
    see it meanwhile."""
    try:
        print(json.dumps([str(where), words, each]), file=forker().stdin, flush=True)
        return [tuple(told) for told in json.loads(forker().stdout.readline())]
    except BaseException:  # a late answer must not be read as that of the next job
        forker().kill()
        forker.cache_clear()
        raise


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


def serve() -> None:
    from bigtrain_lab.runtime.process.forks import LOADED

    for name in ("bigtrain_lab.cli", *LOADED):  # what a rank would import first, once for all
        import_module(name)
    gc.freeze()  # else each rank looks, when it ends, at all that it inherits, and copies the pages
    for line in sys.stdin:
        where, words, each = json.loads(line)
        outputs = [Path(where) / f".output-{number}" for number in range(len(each))]
        ranks = [
            get_context("fork").Process(target=become, args=(where, words, variables, output))
            for variables, output in zip(each, outputs)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        print(
            json.dumps(
                [(rank.exitcode, output.read_text()) for rank, output in zip(ranks, outputs)]
            ),
            flush=True,
        )


def become(where: str, words: list[str], variables: dict[str, str], output: Path) -> None:
    """What `python *words` would be. Such a process ends without taking apart what it inherits,
    which would take 0.3 s."""
    os.chdir(where)
    os.environ.update(variables)
    # torch has read the variable already
    import_module("torch").set_num_threads(int(variables.get("OMP_NUM_THREADS", os.cpu_count())))
    written, nothing = (
        os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND),
        os.open(os.devnull, os.O_RDONLY),
    )
    for ours, theirs in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(ours, theirs)
    module = words[0] == "-m"
    sys.argv = words[module:]
    sys.path[0] = where
    if module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve()
