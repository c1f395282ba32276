"""A run: what comes home, what cannot be, and the directory, which can be read while it grows and
after a crash."""

import json
import os
import re
import shutil
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from bigtrain_lab.core import Cost, Impossible, Mesh, Scalar, Span
from bigtrain_lab.runtime import Run, launch
from bigtrain_lab.runtime.process.child import Job, work
from bigtrain_lab.runtime.record.log import EventLog, LogUnwritable, Tail
from bigtrain_lab.runtime.record.results import replicas_differ
from tests.unit.ranks import step

pytestmark = pytest.mark.usefixtures("server")
WRONG = (0, -1, 2.0, "4", True, None)  # numbers of ranks or steps


# -- results, settings, environment ----------------------------------------------------------------


def test_results_come_home_as_they_were(tmp_path):
    def program(rank):
        return {
            f"w.{rank.index}/x": torch.arange(3, dtype=torch.float64),
            "file": 3,
            "half": torch.ones(2, dtype=torch.bfloat16),
            "who": rank.index,
            "flag": True,
            "text": "abc",
        }

    run = launch(
        program, 2, directory=tmp_path / "run", settings={"a": 1}, steps=3, name="try", watts=100
    )
    trace = run.wait()
    assert (
        run.state == "done"
        and run.diagnosis is None
        and trace.settings == {"a": 1}
        and trace.steps == 3
    )
    with pytest.warns(UserWarning, match="^who is not one on all ranks .* 1 apart") as told:
        result = run.result
    assert [str(each.message) for each in told] == run.replicas
    assert result["w.1/x"].tolist() == [0, 1, 2] and result["w.1/x"].dtype == "float64"
    assert (int(result["file"]), int(result["who"]), bool(result["flag"]), str(result["text"])) == (
        3,
        0,
        True,
        "abc",
    )
    assert [int(r["who"]) for r in run.results] == [0, 1] and result["half"].dtype == "float32"
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert Run.open(tmp_path / "run").replicas == run.replicas


@pytest.mark.parametrize(
    "arrays, told",
    [
        (
            ([1.0, 2.0], [1.0, 2.0], [1.0, 2.5]),
            "x is not one .*: ranks 0 and 1 against rank 2, 0.5 apart",
        ),
        (
            ([1.0], [1.0, 2.0]),
            r"of float64 of shape \(1,\) and float64 of shape \(2,\)",
        ),
        (([0.0], [-0.0]), "apart in the signs of zeros."),
        (([np.nan], [1.0]), "of which not all is a finite number."),
        ((["a"], ["b"]), "as texts."),
        (([np.nan], [np.nan]), ""),
    ],
)
def test_replicas_are_compared_to_the_bit(arrays, told):
    found = replicas_differ(
        [{"x": np.array(array), str(rank): np.array(rank)} for rank, array in enumerate(arrays)]
        + [{}]
    )
    assert len(found) == bool(told) and re.search(told, "".join(found))


def test_ranks_know_where_they_are(tmp_path):
    def program(rank):
        draws = {
            axis: float(torch.rand(1, generator=rank.rng(axis))) for axis in (None, "dp", "tp")
        }
        assert (
            float(torch.rand(1, generator=rank.rng("dp"))) == draws["dp"]
        )  # a generator is made anew
        return {f"{axis}{rank.index}": draw for axis, draw in draws.items()} | {
            f"cwd{rank.index}": os.getcwd(),
            f"scheduled{rank.index}": getattr(os, "sched_getscheduler", lambda pid: -1)(0),
        }

    run = launch(program, 4, mesh=Mesh(dp=2, tp=2), directory=tmp_path / "run")
    r = {name: value.item() for name, value in run.result.items()}
    assert (
        r["dp0"] == r["dp1"] != r["dp2"] == r["dp3"]
        and r["tp0"] == r["tp2"] != r["tp1"] == r["tp3"]
    )
    assert len({r[f"None{i}"] for i in range(4)}) == 4 and r["cwd2"] == os.getcwd()
    # on Linux, none is kept from ending a send
    assert r["scheduled0"] == r["scheduled3"] == getattr(os, "SCHED_BATCH", -1)


def test_default_directory_and_what_was_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = launch(lambda rank: print("hello from", rank.index), 2, name="my run!")
    run.wait()
    assert (
        re.fullmatch(r"\d{8}T\d{6}Z-my-run--[0-9a-f]{8}", run.directory.name)
        and run.directory.parent == tmp_path / "runs"
    )
    assert run.output(1) == "hello from 1\n"


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, told",
    [
        *(({"ranks": ranks}, "a whole number of ranks from 1 to") for ranks in WRONG),
        *(({"steps": steps}, "a whole number of steps, at least 1") for steps in WRONG),
        ({"ranks": 100_000}, "a whole number of ranks from 1 to"),
        ({"mesh": Mesh(dp=2, tp=2)}, "The mesh has 4 ranks and ranks is 2"),
        ({"stall_s": 0}, "stall_s is 0"),
        ({"device": "tpu"}, "There is no device 'tpu': choose one of cpu, auto, cuda"),
        ({"cost": {"F": -1}}, "negative"),
        ({"program": partial(print, threading.Lock())}, "cannot travel to the ranks .*lock"),
    ],
)
def test_what_cannot_be_launched_leaves_no_directory(options, told, tmp_path):
    asked = {"program": lambda rank: None, "ranks": 2, "directory": tmp_path / "run", **options}
    with pytest.raises(Impossible, match=told):
        launch(**asked)
    assert os.listdir(tmp_path) == []


def test_impossible_directories(tmp_path):
    (tmp_path / "file").write_text("mine")
    for directory in (tmp_path, tmp_path / "file"):
        with pytest.raises(Impossible, match="is not empty: choose another directory, or open"):
            launch(lambda rank: None, 1, directory=directory)
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


# -- the log ---------------------------------------------------------------------------------------


def test_events_come_while_the_run_goes_on(tmp_path):
    def program(rank):
        for i in range(2):
            with rank.span(step(rank, i)):
                pass
            rank.log("loss", 0.5)
            while i == 0 and not os.path.exists(gate):
                time.sleep(0.01)

    gate = str(tmp_path / "gate")
    run = launch(program, 1, cost={"F": 1}, directory=tmp_path / "run")
    events = run.events()
    assert [next(events), next(events)] == [
        Span(0, "compute", "F", "0F0", 0, 1000, None),
        Scalar(0, "compute", "scalar", "loss", 1000, 0.5),
    ]
    assert run.state == "running"
    Path(gate).touch()
    assert [(e.name, e.start) for e in events] == [
        ("0F1", 1000),
        ("loss", 2000),
    ] and run.state == "done"
    assert list(run.trace()) == list(Run.open(run.directory).events())


def test_a_message_that_came_before_another_clock_sent_it_was_sent_as_it_came(tmp_path):
    """Machines know each other's clocks to an error."""

    def program(rank):
        wall = rank._recorder.clock.wall
        rank._recorder.clock.wall = lambda: wall() + 10**9 * (rank.index == 0)
        if rank.index == 0:
            rank.group().isend(torch.ones(2), 1, name="x")
        else:
            rank.group().recv(0, name="x")

    run = launch(program, 2, cost={"F": 1}, directory=tmp_path / "run")
    run.wait()
    assert [(t.src, t.rank, t.start == t.end) for t in run.trace("measured").transfers()] == [
        (0, 1, True)
    ]


def test_without_the_clock_a_run_is_measured(tmp_path):
    def program(rank):
        rank.group().barrier()

    run = launch(program, 2, cost={"F": 1}, clock=False, directory=tmp_path / "run")
    assert run.wait().clock == "measured" and run.wait().unit == "s"
    for clock, told in {
        "modelled": "no modelled clock",
        "predicted": 'no clock "?.predicted',
    }.items():
        with pytest.raises(Impossible, match=told):
            run.trace(clock)


def test_summary(tmp_path):
    def program(rank):
        with rank.span(step(rank, 0)):
            pass

    run = launch(
        program,
        2,
        cost=Cost({"F": [9, 18]}, unit="s", ticks_per_unit=10**12),
        watts=400,
        directory=tmp_path / "run",
    )
    run.wait()
    assert run.summary() == {
        "clock": "modelled",
        "unit": "s",
        "steps": 1,
        "step_time": 18.0,
        "idle_share": 0.25,
        "shares": (0.75, 0, 0.25),
        "device_hours": 0.01,
        "energy_wh": 4.0,
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished ones of one rank and of two; whatever launched them is gone."""

    def program(rank):
        for i in range(3):
            with rank.span(step(rank, i)):
                pass

    place = tmp_path_factory.mktemp("runs")
    for ranks in (1, 2):
        launch(program, ranks, cost={"F": 1}, directory=place / str(ranks)).wait()
        file = place / str(ranks) / "settings.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"launcher": None}))
    return place


@pytest.fixture
def finished(runs, tmp_path):
    """Makes a copy of the one with so many ranks."""
    return lambda ranks=1: Path(shutil.copytree(runs / str(ranks), tmp_path / "run"))


def cut(path: Path, mark: str) -> None:
    text = path.read_text()
    path.write_text(text[: text.rindex(mark) + 3])


@pytest.mark.parametrize(
    "lose, said",
    [
        (lambda d: None, None),
        (lambda d: cut(d / "events-1.jsonl", '["@done"'), "The log of rank 1 is cut off after 1F2"),
        (lambda d: cut(d / "events-1.jsonl", '["span"'), "The log of rank 1 is cut off after 1F1"),
        (
            lambda d: (d / "events-0.jsonl").write_text(""),
            "The log of rank 0 is cut off before its first step",
        ),
        (lambda d: (d / "events-0.jsonl").unlink(), "The log of rank 0 is missing"),
        (
            lambda d: (d / "events-0.jsonl").write_text(
                (d / "events-0.jsonl")
                .read_text()
                .replace('["@enter"', "x", 2)
                .replace("x", '["@enter"', 1)
            ),
            "The log of rank 0 is damaged after 0F0",
        ),
        (lambda d: (d / "result-1.npz").unlink(), "The result of rank 1 is missing"),
        (
            lambda d: (d / "end.json").unlink(),
            "The note of its end (end.json) is missing or damaged",
        ),
        (
            lambda d: (d / "end.json").write_text('{"state": "do'),
            "The note of its end (end.json) is missing or damaged",
        ),
        (
            lambda d: [
                (d / "events-0.jsonl").unlink(),
                (d / "result-0.npz").unlink(),
                cut(d / "events-1.jsonl", '["@done"'),
            ],
            (
                "The log of rank 0 is missing, the log of rank 1 is cut off after 1F2 and the"
                " result of rank 0 is missing"
            ),
        ),
    ],
    ids=[
        "nothing",
        "the end",
        "a step",
        "all of a log",
        "a log",
        "a line",
        "a result",
        "end.json",
        "half of end.json",
        "much",
    ],
)
def test_a_run_says_what_its_directory_has_lost(lose, said, finished):
    directory = finished(ranks=2)
    lose(directory)
    run = Run.open(directory)
    assert run.state == "done" and run.damage == (said and f"{said}: what is whole is shown.")
    assert bool(run.trace().settings.get("unfinished")) == ("log" in (said or ""))


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path):
    lines = [
        b'["bigtrain-run",2,{"rank":0}]\n',
        b'["scalar",5,0,"compute","scalar","loss",1,0.5]\n',
        b'["@done",9,"compute",0]\n',
    ]
    path, tail, found = tmp_path / "events-0.jsonl", Tail(tmp_path / "events-0.jsonl"), []
    assert tail.new() == []
    for byte in b"".join(lines):
        with open(path, "ab") as file:
            file.write(bytes([byte]))
        found += tail.new()
    assert [type(item).__name__ for item in found] == ["Logged", "Mark"] and found[
        0
    ].measured.start == 5


@pytest.mark.parametrize("program, code", [(lambda rank: {}, 0), (lambda rank: 1 / 0, 1)])
def test_work_leaves_no_file_open(program, code, tmp_path):
    """A rank that torchrun started works in a process that goes on, and may work again."""
    job = Job(str(tmp_path), Mesh(world=1), None, time.monotonic_ns(), "")
    assert work(0, job, lambda: program) == code
    assert (tmp_path / "events-0.jsonl").exists() and not [
        f for f in psutil.Process().open_files() if Path(f.path).parent == tmp_path
    ]


def test_a_log_that_is_closed_takes_no_line_into_another_file(tmp_path):
    log = EventLog(tmp_path / "log", 0)
    log.close()
    with (
        open(tmp_path / "other", "wb"),
        pytest.raises(LogUnwritable),
    ):  # its number is the log's, which was free again
        log.write("@done", 0, "compute", 0)
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize("first", ["5", "{}", '["bigtrain-run",99,{"rank":0}]'])
def test_a_log_that_begins_otherwise_is_damaged(first, finished):
    path = finished() / "events-0.jsonl"
    path.write_text(first + path.read_text()[path.read_text().index("\n") :])
    assert Run.open(path.parent).damage.startswith("The log of rank 0 is damaged before its first")
