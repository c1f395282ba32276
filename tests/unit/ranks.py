"""What the tests of the runtime share: launching what must fail, an order of events that no load
changes, the ranks left."""

import json
import os
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from bigtrain_lab.order.schedule import Action
from bigtrain_lab.runtime import RankFailed, Run, launch, warm
from bigtrain_lab.runtime.failure.wait_graph import Doing
from bigtrain_lab.runtime.process import server as fork_server
from bigtrain_lab.runtime.record.log import EventLog


def warm_up() -> None:
    """Ranks fork from a warm server, as in a notebook: time limits are those of a run, not of
    torch's first import."""
    warm()
    with tempfile.TemporaryDirectory() as directory:
        launch(lambda rank: None, 1, directory=os.path.join(directory, "run")).wait()


def ranks_alive() -> list:
    """Processes of ranks that this process launched: the fork server's children in its session, and
    nobody else's (a browser's, or those of answers)."""
    server = psutil.Process(fork_server.running().process.pid)
    return [
        p
        for p in server.children(recursive=True)
        if p.is_running()
        and p.status() != psutil.STATUS_ZOMBIE
        and os.getsid(p.pid) == os.getsid(server.pid)
    ]


def fails(program, ranks=3, **options) -> Run:
    """Run a program that must fail."""
    return failed(launch(program, ranks, directory=tempfile.mkdtemp(), **options))


def failed(run: Run, marks=None) -> Run:
    """A run that must fail; the failure is told, and every rank is gone.

    `marks`: no stall is counted before the ranks' logs end with these.
    """
    while (
        marks
        and run.state == "running"
        and [last_mark(run.directory, rank) for rank in range(len(marks))] != marks
    ):
        with open(run.directory / "rank-0.log", "a") as log:
            log.write("\n")  # a log that grows is no stall
        time.sleep(0.05)
    with pytest.raises(RankFailed) as told:
        run.wait()
    assert str(told.value) == run.diagnosis and run.state == "failed"
    assert ranks_alive() == []
    again = Run.open(run.directory)
    assert (again.state, again.diagnosis) == ("failed", run.diagnosis)
    return run


def written(directory, logs: dict) -> list[Doing]:
    """What ranks are at whose logs have these marks: each as a tuple, or in words, of lane compute:
    "in" is a collective of all, and messages are called m."""
    for rank, marks in logs.items():
        log = EventLog(directory / f"events-{rank}.jsonl", rank)
        for mark in marks:
            if isinstance(mark, str):
                what, *about = mark.split()
                about = [int(word) if word.lstrip("-").isdigit() else word for word in about]
                about += {"wait": ["m", "", ()], "send": ["m"], "done": [0]}.get(what, [])
                mark = what, "compute", *about
                if what == "in":
                    mark = "wait", "compute", None, 0, "sum", about[0], list(logs)
            log.write("@" + mark[0], 0, *mark[1:])
    doings = [Doing(directory, rank) for rank in logs]
    for doing in doings:
        doing.follow()
    return doings


def step(rank, number):
    return (Action("F", rank.index, number),)


# -- order: what happens only after another rank has come to its place, whatever the machine's load


def last_mark(directory, rank: int) -> str:
    """The first word of the last whole line of a rank's log: "@wait" where it waits; "" where there
    is no log yet."""
    path = Path(directory) / f"events-{rank}.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return json.loads(lines[-1])[0] if lines else ""


def until(condition) -> None:
    """Return when the condition holds; pytest's own limit ends a test in which it never does."""
    while not condition():
        time.sleep(0.005)


def after(rank, mark: str, *others: int) -> None:
    """On a rank: return when the logs of the other ranks (these, or all others) say that they are
    at this mark."""
    directory = rank._recorder.log.path.parent
    for other in others or set(range(rank.size)) - {rank.index}:
        until(lambda: last_mark(directory, other) == mark)  # noqa: B023  (called at once)
