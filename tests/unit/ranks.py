"""What the tests of the runtime share: launching what must fail, and counting the ranks that are left."""

import os
import tempfile
import time
from multiprocessing import forkserver

import psutil
import pytest

from bigtrain_lab.runtime import RankFailed, Run, launch, warm
from bigtrain_lab.schedule import Action


def warm_up() -> None:
    """Ranks fork from a warm server, as in a notebook: time limits are those of a run, not of torch's first import."""
    warm()
    with tempfile.TemporaryDirectory() as directory:
        launch(lambda rank: None, 1, directory=os.path.join(directory, "run")).wait()


def ranks_alive() -> list:
    """Processes of ranks that this process launched: the fork server's children, and nobody else's (a browser's, say)."""
    server = forkserver._forkserver._forkserver_pid
    if server is None or not psutil.pid_exists(server):
        return []
    return [p for p in psutil.Process(server).children(recursive=True) if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def fails(program, ranks=3, within_s=5.0, **options) -> Run:
    """Run a program that must fail; the failure is told, and every rank gone, in time."""
    began = time.monotonic()
    run = launch(program, ranks, directory=tempfile.mkdtemp(), **options)
    with pytest.raises(RankFailed) as failed:
        run.wait(60)
    assert time.monotonic() - began < within_s + options.get("stall_s", 0) + 5  # + 5: machines of two busy cores
    assert str(failed.value) == run.diagnosis and run.state == "failed"
    assert ranks_alive() == []
    again = Run.open(run.directory)
    assert (again.state, again.diagnosis) == ("failed", run.diagnosis)
    return run


def step(rank, number):
    return (Action("F", rank.index, number),)
