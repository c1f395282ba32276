"""How long a fault stays untold: from the fault to the diagnosis, with nothing left behind."""

import os
import signal
import tempfile
import time
from pathlib import Path

import psutil

from bigtrain_lab.runtime import RankFailed, launch, warm

from .measure import row

STALL_S = 2.0


def raises(rank):
    raise ValueError("on purpose")


def exits(rank):
    os._exit(3)


def is_killed(rank):
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(rank):
    time.sleep(1000)


def faulty(fault):
    """A program in which rank 2 notes the time and then does this, while the others wait for it."""
    def program(rank):
        rank.group().barrier()
        if rank.index == 2:
            rank.log("fault", time.monotonic())
            fault(rank)
        rank.group().recv(2) if rank.index != 2 else None
    return program


def told_after(fault) -> tuple[float, str, int]:
    """(seconds from fault to diagnosis, the diagnosis, processes left)."""
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with tempfile.TemporaryDirectory() as folder:
        run = launch(faulty(fault), ranks=4, directory=Path(folder) / "run", stall_s=STALL_S)
        try:
            run.wait(timeout=60)
            diagnosis = "nothing was told"
        except RankFailed as failure:
            diagnosis = str(failure)
        told = time.monotonic()
        at = next(e.value for e in run.trace("measured").events if e.name == "fault")
    left = {p.pid for p in psutil.Process().children(recursive=True)} - before
    return told - at, diagnosis, len(left)


def rows():
    warm()
    launch(lambda rank: None, ranks=4, directory=Path(tempfile.mkdtemp()) / "run").wait()  # the fork server is there
    table = []
    for fault, limit in ((raises, 5), (exits, 5), (is_killed, 5), (hangs, STALL_S + 5)):
        took, diagnosis, left = told_after(fault)
        assert "Rank 2" in diagnosis.splitlines()[0], diagnosis
        first = diagnosis.splitlines()[0].replace("|", "/").replace(f"{Path.cwd()}/", "")
        table.append(row(f"rank 2 {fault.__name__.replace('_', ' ')}: \"{first}\"", took, "s", at_most=limit))
        table.append(row(f"processes left after rank 2 {fault.__name__.replace('_', ' ')}", left, "", at_most=0))
    return table
