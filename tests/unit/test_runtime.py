"""A run: what comes home, what cannot be, and the directory, which can be read while it grows and after a crash."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from bigtrain_lab.core import Cost, Impossible, Mesh, Scalar, Span
from bigtrain_lab.runtime import RankFailed, Run, launch
from bigtrain_lab.runtime import log as log_file
from bigtrain_lab.runtime.log import EventLog, Log, LogUnwritable, Tail
from bigtrain_lab.runtime.process import Job, work
from bigtrain_lab.runtime.results import replicas_differ
from bigtrain_lab.schedule import Action
from tests.unit.ranks import step, warm_up

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture(scope="module")
def server():
    warm_up()


# -- results, settings, environment ---------------------------------------------------------------------------


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
    with pytest.warns(
        UserWarning,
        match="^who is not one on all ranks that returned it: rank 0 against rank 1, 1 apart at most.$",
    ) as told:
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
            "x is not one on all ranks that returned it: ranks 0 and 1 against rank 2, 0.5 apart at most.",
        ),
        (
            ([1.0], [1.0, 2.0]),
            "rank 0 against rank 1, of float64 of shape (1,) and float64 of shape (2,).",
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
    assert len(found) == bool(told) and "".join(found).endswith(told)


def test_ranks_know_where_they_are(tmp_path):
    def program(rank):
        draws = {
            axis: float(torch.rand(1, generator=rank.rng(axis))) for axis in (None, "dp", "tp")
        }
        assert (
            float(torch.rand(1, generator=rank.rng("dp"))) == draws["dp"]
        )  # a generator is made anew
        return {f"{axis}{rank.index}": draw for axis, draw in draws.items()} | {
            f"cwd{rank.index}": __import__("os").getcwd()
        }

    run = launch(program, 4, mesh=Mesh(dp=2, tp=2), directory=tmp_path / "run")
    r = {name: value.item() for name, value in run.result.items()}
    assert (
        r["dp0"] == r["dp1"] != r["dp2"] == r["dp3"]
        and r["tp0"] == r["tp2"] != r["tp1"] == r["tp3"]
    )
    assert len({r[f"None{i}"] for i in range(4)}) == 4 and r["cwd2"] == os.getcwd()


def test_default_directory_and_what_was_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = launch(lambda rank: print("hello from", rank.index), 2, name="my run!")
    run.wait()
    assert (
        re.fullmatch(r"\d{8}T\d{6}Z-my-run--[0-9a-f]{4}", run.directory.name)
        and run.directory.parent == tmp_path / "runs"
    )
    assert run.output(1) == "hello from 1\n"


def test_a_class_typed_in_main_travels(tmp_path, monkeypatch):
    namespace = {"__name__": "__main__"}
    exec(
        "class Typed:\n    factor = 3\n    def program(self, rank):\n        return {'x': self.factor * helper()}\n"
        "def helper():\n    return 2\n",
        namespace,
    )
    for name in ("Typed", "helper"):
        monkeypatch.setattr(sys.modules["__main__"], name, namespace[name], raising=False)
    assert int(launch(namespace["Typed"]().program, 1, directory=tmp_path / "run").result["x"]) == 6


# -- what cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [0, -1, 2.0, "4", True, None, 100000])
def test_impossible_ranks(ranks):
    with pytest.raises(Impossible, match="launch a whole number of ranks from 1 to"):
        launch(lambda rank: None, ranks)


@pytest.mark.parametrize("steps", [0, -1, 1.0, "2", True, None])
def test_impossible_steps(steps):
    with pytest.raises(Impossible, match="launch a whole number of steps, at least 1"):
        launch(lambda rank: None, 1, steps=steps)


def test_impossible_arguments(tmp_path):
    with pytest.raises(Impossible, match="The mesh has 4 ranks and ranks is 2"):
        launch(lambda rank: None, 2, mesh=Mesh(dp=2, tp=2))
    with pytest.raises(Impossible, match="stall_s is 0"):
        launch(lambda rank: None, 2, stall_s=0)
    with pytest.raises(Impossible, match="negative"):
        launch(lambda rank: None, 2, cost={"F": -1})
    lock = threading.Lock()
    with pytest.raises(Impossible, match="cannot travel to the ranks .*lock"):
        launch(lambda rank: lock, 2, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_impossible_directories(tmp_path):
    (tmp_path / "file").write_text("mine")
    for directory in (tmp_path, tmp_path / "file"):
        with pytest.raises(Impossible, match="is not empty: choose another directory, or open"):
            launch(lambda rank: None, 1, directory=directory)
    with pytest.raises(
        Impossible,
        match="Cannot make the run directory .*Not a directory; choose another directory\\.$",
    ):
        launch(lambda rank: None, 1, directory=tmp_path / "file" / "run")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_before_the_run(tmp_path, monkeypatch):
    def full(path, text):
        raise Impossible(f"Cannot write {path}: No space left on device; free some space.")

    monkeypatch.setattr(sys.modules["bigtrain_lab.runtime.launch"], "write_whole", full)
    with pytest.raises(Impossible, match="No space left"):
        launch(lambda rank: None, 1, directory=tmp_path / "run")
    assert os.listdir(tmp_path) == []


# -- the log --------------------------------------------------------------------------------------------------


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


def test_memory_is_on_both_clocks_and_readings_only_measured(tmp_path):
    def program(rank):
        net = torch.nn.Sequential(*[torch.nn.Linear(4, 4), torch.nn.Tanh()] * 3)
        rank.watch(
            lambda: {"weights": net.parameters(), "gradients": [p.grad for p in net.parameters()]}
        )
        with rank.span((Action("F", 0, 0),), 5):
            loss = net(torch.randn(2, 4)).sum()
        with rank.span((Action("B", 0, 0),), 5):
            loss.backward()

    run = launch(program, 1, cost={"F": 1, "B": 2}, directory=tmp_path / "run")
    modelled, measured = run.wait(), run.trace("measured")
    weights, saved = 4 * (16 + 4), 4 * 8
    assert [(e.kind, e.name, e.start, e.bytes) for e in modelled if hasattr(e, "bytes")] == [
        ("weights", "start", 0, weights),
        ("activations", "0F0", 1000, 4 * saved),
        ("gradients", "0B0", 3000, weights),
        ("activations", "0B0", 3000, 0),
    ]
    readings = [e for e in measured if getattr(e, "inside", False)]
    assert readings and not any(getattr(e, "inside", False) for e in modelled)
    assert max(e.bytes for e in readings) == 4 * saved and modelled.peak_bytes(
        0
    ) == measured.peak_bytes(0)
    assert [s.version for s in modelled.spans()] == [5, 5]


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
    run = launch(
        order := (lambda rank: rank.group().barrier()),
        2,
        cost={"F": 1},
        clock=False,
        directory=tmp_path / "run",
    )
    assert run.wait().clock == "measured" and run.wait().unit == "s"
    with pytest.raises(Impossible, match="no modelled clock"):
        run.trace("modelled")
    with pytest.raises(Impossible, match='no clock "?.predicted'):
        run.trace("predicted")
    assert order


def test_summary(tmp_path):
    def program(rank):
        with rank.span(step(rank, 0)):
            pass

    cost = Cost({"F": [9, 18]}, unit="s", ticks_per_unit=10**12)
    run = launch(program, 2, cost=cost, watts=400, directory=tmp_path / "run")
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
    slots = launch(program, 2, cost={"F": 1}, watts=400, directory=tmp_path / "slots")
    slots.wait()
    assert slots.summary()["energy_wh"] is None and slots.summary()["step_time"] == 1


def finished(tmp_path, ranks=1) -> Path:
    def program(rank):
        for i in range(3):
            with rank.span(step(rank, i)):
                pass

    launch(program, ranks, cost={"F": 1}, directory=tmp_path / "run").wait()
    return tmp_path / "run"


def test_a_cut_off_log_is_read_as_far_as_it_goes(tmp_path):
    directory = finished(tmp_path)
    log = directory / "events-0.jsonl"
    whole = log.read_bytes()
    counts = []
    for size in range(len(whole) + 1):
        log.write_bytes(whole[:size])
        counts.append(len(Run.open(directory).trace()))
    assert counts == sorted(counts) and set(counts) == {0, 1, 2, 3}
    lines = whole.splitlines(keepends=True)
    spans = [i for i, line in enumerate(lines) if b'"span"' in line]
    log.write_bytes(b"".join([*lines[: spans[1]], b"\0" * 100 + b"\n", *lines[spans[1] + 1 :]]))
    assert len(Run.open(directory).trace()) == 1  # nothing after a lost line is trusted


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
            "The log of rank 0 is missing, the log of rank 1 is cut off after 1F2 and the result of rank 0 is missing",
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
def test_a_run_says_what_its_directory_has_lost(lose, said, tmp_path):
    directory = finished(tmp_path, ranks=2)
    settings = json.loads((directory / "settings.json").read_text())
    (directory / "settings.json").write_text(
        json.dumps(settings | {"launcher": None})
    )  # opened later, by somebody else
    lose(directory)
    run = Run.open(directory)
    assert run.state == "done" and run.damage == (said and f"{said}: what is whole is shown.")
    assert bool(run.trace().settings.get("unfinished")) == ("log" in (said or ""))


def test_a_lost_result_is_named(tmp_path):
    directory = finished(tmp_path, ranks=2)
    for write, how in (
        (lambda path: path.write_bytes(path.read_bytes()[:20]), "damaged"),
        (Path.unlink, "missing"),
    ):
        write(directory / "result-1.npz")
        with pytest.raises(Impossible, match=f"The result of rank 1 is {how} "):
            Run.open(directory).result


def test_of_a_run_that_failed_only_lost_lines_are_told(tmp_path):
    def program(rank):
        with rank.span(step(rank, 0)):
            raise ValueError("bad")

    run = launch(program, 1, directory=tmp_path / "run")
    with pytest.raises(RankFailed):
        run.wait()
    assert run.damage is None and Run.open(run.directory).damage is None
    log = run.directory / "events-0.jsonl"
    log.write_text(log.read_text().replace('["@enter"', "["))
    assert (
        Run.open(run.directory).damage
        == "The log of rank 0 is damaged before its first step: what is whole is shown."
    )


def test_logs_are_read_again_only_where_they_have_changed(tmp_path, monkeypatch):
    run, read = Run.open(finished(tmp_path)), []
    real = Log.read
    monkeypatch.setattr(Log, "read", lambda path, *of: read.append(path) or real(path, *of))
    assert (
        run.trace() == run.trace()
        and len(run.trace("measured")) == 3
        and run.damage is None
        and len(read) == 1
    )
    cut(run.directory / "events-0.jsonl", '["span"')
    assert len(run.trace()) == 2 and len(read) == 2


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path):
    lines = [
        b'["bigtrain-run",1,{"rank":0}]\n',
        b'["scalar",5,0,"compute","scalar","loss",1,0.5]\n',
        b'["@done",9]\n',
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


def test_a_log_with_more_than_is_read_may_go_on_growing(tmp_path):
    path = tmp_path / "events-0.jsonl"
    log, tail = EventLog(path, 0), Tail(path, most=1)
    for wall in range(3):
        log.write("@finish", wall)
    assert len(tail.new()) == 2 and tail.too_long and not tail.damaged
    log.write("@finish", 3)
    assert tail.new() == [] and not tail.damaged
    log.close()


def test_a_log_that_cannot_be_opened_for_a_moment_is_not_damaged(tmp_path, monkeypatch):
    log, tail = EventLog(tmp_path / "events-0.jsonl", 0), Tail(tmp_path / "events-0.jsonl")
    log.write("@finish", 1)
    log.close()
    with monkeypatch.context() as context:
        context.setattr(
            log_file, "open_regular", lambda path: exec("raise OSError(24, 'Too many open files')")
        )
        assert tail.new() == [] and not tail.damaged
    assert len(tail.new()) == 1


@pytest.mark.slow
def test_no_locale_changes_what_a_run_says(tmp_path):
    settings = json.loads((finished(tmp_path) / "settings.json").read_text(encoding="utf-8"))
    (tmp_path / "rank-0.log").write_text("naïve ✓", encoding="utf-8")
    (tmp_path / "settings.json").write_text(
        json.dumps({**settings, "name": "é"}, ensure_ascii=False), encoding="utf-8"
    )
    (tmp_path / "end.json").write_text(
        '{"state": "failed", "diagnosis": "ü", "waits": []}', encoding="utf-8"
    )
    code = (
        "import sys; from bigtrain_lab.runtime import Run; run = Run.open(sys.argv[1]);"
        "print(ascii([run.output(0), run.settings['name'], run.diagnosis, run.waits]))"
    )
    ascii_only = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=ascii_only,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert found.strip() == ascii(["naïve ✓", "é", "ü", ()])


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
        log.write("@done", 0)
    assert (tmp_path / "other").read_bytes() == b""


def test_other_versions_and_other_directories_are_refused(tmp_path):
    directory = finished(tmp_path)
    settings = json.loads((directory / "settings.json").read_text())
    (directory / "settings.json").write_text(json.dumps(settings | {"bigtrain-run": 99}))
    with pytest.raises(
        Impossible, match="written by run version 99, this library reads 1: run it again"
    ):
        Run.open(directory)
    for text in ("{", "[]", "{}", ""):
        (directory / "settings.json").write_text(text)
        with pytest.raises(Impossible, match="is not a run directory"):
            Run.open(directory)
    for nowhere in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(Impossible, match="is not a run directory"):
            Run.open(nowhere)
    (directory / "settings.json").write_text(json.dumps(settings))
    log = directory / "events-0.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join(['["bigtrain-run",2,{"rank":0}]', *lines[1:]]) + "\n")
    with pytest.raises(Impossible, match="written by run version 2, this library reads 1"):
        Run.open(directory).trace()
