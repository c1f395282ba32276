"""Launching, and what becomes of a run: its end told, its ranks gone, its directory readable."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

import bigtrain_lab
from bigtrain_lab.core import Cost, Impossible, Mesh, Scalar, Span
from bigtrain_lab.runtime import RankFailed, Run, launch, warm
from bigtrain_lab.runtime.launch import hidden_main
from bigtrain_lab.schedule import Action

pytestmark = pytest.mark.timeout(180)
HERE = str(Path(__file__))
ROOT = str(Path(bigtrain_lab.__file__).parents[1])


@pytest.fixture(scope="module", autouse=True)
def server():
    """Ranks fork from a warm server, as in a notebook: limits below are those of a run, not of torch's first import."""
    warm()
    with tempfile.TemporaryDirectory() as directory:
        launch(lambda rank: None, 1, directory=Path(directory) / "run").wait()


def ranks_alive() -> list:
    """Processes of ranks that this process launched: the fork server's children."""
    return [p for p in psutil.Process().children(recursive=True) if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
            and p.parent() and p.parent().pid != os.getpid()]


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


# -- results, settings, environment ---------------------------------------------------------------------------


def test_results_come_home_as_they_were(tmp_path):
    def program(rank):
        return {f"w.{rank.index}/x": torch.arange(3, dtype=torch.float64), "file": 3, "half": torch.ones(2, dtype=torch.bfloat16),
                "who": rank.index, "flag": True, "text": "abc"}

    run = launch(program, 2, directory=tmp_path / "run", settings={"a": 1}, steps=3, name="try", watts=100)
    trace = run.wait()
    assert run.state == "done" and run.diagnosis is None and trace.settings == {"a": 1} and trace.steps == 3
    result = run.result
    assert result["w.1/x"].tolist() == [0, 1, 2] and result["w.1/x"].dtype == "float64"
    assert (int(result["file"]), int(result["who"]), bool(result["flag"]), str(result["text"])) == (3, 0, True, "abc")
    assert [int(r["who"]) for r in run.results] == [0, 1] and result["half"].dtype == "float32"
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert Run.open(tmp_path / "run").result.keys() == result.keys()


@pytest.mark.parametrize("value, reason", [(lambda: 3, "returned int: let it return a dict"),
                                           (lambda: {"net": object()}, "returned net of type object: return arrays")])
def test_a_program_that_returns_something_else(value, reason):
    run = fails(lambda rank: value(), 1)
    assert reason in run.diagnosis
    assert not list(run.directory.glob("*.partial"))


def test_ranks_know_where_they_are(tmp_path):
    def program(rank):
        draws = {axis: float(torch.rand(1, generator=rank.rng(axis))) for axis in (None, "dp", "tp")}
        assert float(torch.rand(1, generator=rank.rng("dp"))) == draws["dp"]  # a generator is made anew
        return {f"{axis}{rank.index}": draw for axis, draw in draws.items()} | {f"cwd{rank.index}": __import__("os").getcwd()}

    run = launch(program, 4, mesh=Mesh(dp=2, tp=2), directory=tmp_path / "run")
    r = {name: value.item() for name, value in run.result.items()}
    assert r["dp0"] == r["dp1"] != r["dp2"] == r["dp3"] and r["tp0"] == r["tp2"] != r["tp1"] == r["tp3"]
    assert len({r[f"None{i}"] for i in range(4)}) == 4 and r["cwd2"] == os.getcwd()


def test_default_directory_and_what_was_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = launch(lambda rank: print("hello from", rank.index), 2, name="my run!")
    run.wait()
    assert re.fullmatch(r"\d{8}T\d{6}Z-my-run--[0-9a-f]{4}", run.directory.name) and run.directory.parent == tmp_path / "runs"
    assert run.output(1) == "hello from 1\n"


def test_a_class_typed_in_main_travels(tmp_path, monkeypatch):
    namespace = {"__name__": "__main__"}
    exec("class Typed:\n    factor = 3\n    def program(self, rank):\n        return {'x': self.factor * helper()}\n"
         "def helper():\n    return 2\n", namespace)
    for name in ("Typed", "helper"):
        monkeypatch.setattr(sys.modules["__main__"], name, namespace[name], raising=False)
    assert int(launch(namespace["Typed"]().program, 1, directory=tmp_path / "run").result["x"]) == 6


# -- what cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [0, -1, 2.0, "4", True, None, 100000])
def test_impossible_ranks(ranks):
    with pytest.raises(Impossible, match="launch a whole number of ranks from 1 to"):
        launch(lambda rank: None, ranks)


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
        with pytest.raises(Impossible, match="is not empty: choose another directory="):
            launch(lambda rank: None, 1, directory=directory)
    with pytest.raises(Impossible, match="Cannot make the run directory .*Not a directory; choose another"):
        launch(lambda rank: None, 1, directory=tmp_path / "file" / "run")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_before_the_run(tmp_path, monkeypatch):
    def full(path, text):
        raise Impossible(f"Cannot write {path}: No space left on device; free some space or choose another place.")

    monkeypatch.setattr(sys.modules["bigtrain_lab.runtime.launch"], "write_whole", full)
    with pytest.raises(Impossible, match="No space left"):
        launch(lambda rank: None, 1, directory=tmp_path / "run")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_during_the_run():
    def program(rank):
        import resource
        for i in range(100):
            if rank.index == 1 and i == 50:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            with rank.span(step(rank, i)):
                pass
        rank.group().barrier()

    run = fails(program, 2, cost={"F": 1})
    assert run.diagnosis.startswith(f"Rank 1 cannot write to {run.directory}: free some space")
    assert len(run.trace().spans(1)) == 50
    assert not list(run.directory.glob("*.partial"))


# -- failures -------------------------------------------------------------------------------------------------


def test_a_rank_that_raises_is_named_with_its_line_and_what_the_others_did():
    def program(rank):
        group = rank.group()
        with rank.span(step(rank, 0)):
            if rank.index == 1:
                raise ValueError("the loss is bad")
        group.recv((rank.index + 1) % 3, name=Action("F", (rank.index + 1) % 3, 0))

    run = fails(program, cost={"F": 1})
    line = program.__code__.co_firstlineno + 4
    assert run.diagnosis.splitlines()[:2] == ["Rank 1 failed: ValueError: the loss is bad",
                                              f"  at {HERE}:{line}, in program: raise ValueError(\"the loss is bad\")"]
    assert "rank 0 waits for 1F0 from rank 1; rank 2 waits for 0F0 from rank 0" in run.diagnosis
    assert [s.name for s in run.trace().spans()] == ["0F0", "2F0"]
    assert "Traceback" in run.output(1)


def test_a_failure_inside_a_library_is_told_at_the_persons_line():
    def program(rank):
        torch.zeros(2) @ torch.zeros(3)

    run = fails(program, 1)
    assert f"{HERE}:{program.__code__.co_firstlineno + 1}, in program" in run.diagnosis and "RuntimeError" in run.diagnosis


def test_a_victim_is_never_blamed():
    def program(rank):
        group = rank.group()
        if rank.index == 2:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        group.recv(rank.index + 1, name=f"from {rank.index + 1}")  # 0 waits for 1, which waits for 2

    run = fails(program, ranks=3)
    assert run.diagnosis.startswith("Rank 2 was killed by signal 9 (SIGKILL; out of memory?)")
    assert "rank 1 waits for from 2 from rank 2" in run.diagnosis


def test_a_victim_that_fails_first_in_time_is_not_blamed():
    def program(rank):
        if rank.index == 0:
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:12345")
        time.sleep(0.5)
        raise KeyError("the reason")

    assert fails(program, 2).diagnosis.startswith("Rank 1 failed: KeyError")


@pytest.mark.parametrize("leave, told", [
    (lambda: sys.exit(3), r"Rank 1 left its program by sys.exit\(3\).\n  at .*in <lambda>"),
    (lambda: os._exit(3), r"Rank 1 exited with code 3 before its program returned \(os._exit\?\); rank 1 was in 1F0"),
    (lambda: os._exit(0), r"Rank 1 exited with code 0 before its program returned \(os._exit\?\); rank 1 was in 1F0"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), r"Rank 1 was killed by signal 9 .*; rank 1 was in 1F0"),
    (lambda: __import__("ctypes").string_at(0), r"Rank 1 was killed by signal 11 \(SIGSEGV\).*\n  at .*test_runtime.py:\d+, in <lambda>"),
], ids=["sys.exit", "os._exit", "exit 0", "killed", "crashed"])
def test_a_rank_that_leaves(leave, told):
    def program(rank):
        with rank.span(step(rank, 0)):
            if rank.index == 1:
                leave()
        rank.group().barrier()

    assert re.match(told, fails(program, 2, cost={"F": 1}).diagnosis)


def test_a_hang_names_the_rank_that_does_not_wait_and_its_line():
    def program(rank):
        if rank.index == 1:
            with rank.span(step(rank, 0)):
                time.sleep(1000)
        rank.group().recv((rank.index + 1) % 3, name="x")

    run = fails(program, stall_s=1.0)
    line = program.__code__.co_firstlineno + 3
    assert run.diagnosis.startswith(f"Rank 1 hangs: no progress for 1 s at {HERE}:{line}, in program: time.sleep(1000) (rank 1 was in 1F0).")
    assert "rank 0 waits for x from rank 1" in run.diagnosis and "Rank 0 hangs" not in run.diagnosis


def test_a_deadlock_is_told_as_its_cycle_long_before_the_stall_limit():
    def program(rank):
        group = rank.group()
        group.isend(torch.ones(1), (rank.index + 1) % 3, name="other")
        if rank.index < 2:
            group.recv(1 - rank.index, name=Action("F", 1 - rank.index, 7))
        group.recv(0, name="late")

    run = fails(program, stall_s=1000, within_s=-1000 + 5)
    assert run.diagnosis == ("Deadlock: rank 0 waits for 1F7 from rank 1; rank 1 waits for 0F7 from rank 0. "
                             "Meanwhile rank 2 waits for late from rank 0.")


def test_messages_on_their_way_are_no_deadlock(tmp_path):
    def program(rank):
        group = rank.group()
        for i in range(20):
            if rank.index == 0:
                group.isend(torch.zeros(3_000_000), 1, name="big")
                group.recv(1, name="back")
            else:
                group.recv(0, name="big")
                group.isend(torch.zeros(1), 0, name="back")

    launch(program, 2, directory=tmp_path / "run").wait(60)


@pytest.mark.parametrize("record", [True, False])
def test_a_message_without_another_end(record):
    def unsent(rank):
        if rank.index == 1:
            rank.group().recv(0, name=Action("F", 0, 7))

    def untaken(rank):
        if rank.index == 1:
            rank.group().isend(torch.zeros(1), 0, name=Action("F", 1, 7))

    told = fails(unsent, 2, record=record).diagnosis
    assert told.startswith("Rank 1 waits for 0F7 from rank 0, which has finished without sending it." if record else
                           "Rank 1 lost the connection to rank 0 at 0F7")
    told = fails(untaken, 2, record=record).diagnosis
    assert told.startswith("Rank 1 sent 1F7 to rank 0, which has finished without taking it." if record else "Rank 1 lost the connection")


def test_a_module_that_the_ranks_do_not_have(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def program(rank):\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here
    sys.path.remove(str(tmp_path))
    assert "ModuleNotFoundError: No module named 'only_here'" in fails(only_here.program, 2).diagnosis


def test_a_run_goes_on_after_a_failed_one(tmp_path):
    fails(lambda rank: 1 / 0, 2)
    assert launch(lambda rank: {"x": 1}, 2, directory=tmp_path / "run").wait().ranks == 2


# -- stopping, interrupting, ending ---------------------------------------------------------------------------


def forever(rank):
    i = 0
    while True:
        i += 1
        with rank.span((Action("F", rank.index, i),)):
            time.sleep(0.01)


FOREVER = lambda rank: forever(rank)  # noqa: E731  (by value: the ranks do not import this file)


def endless(tmp_path, **options) -> Run:
    import cloudpickle
    cloudpickle.register_pickle_by_value(sys.modules[forever.__module__])
    try:
        run = launch(forever, 2, directory=tmp_path / "run", cost={"F": 1}, **options)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[forever.__module__])
    next(iter(run.events()))
    return run


def test_stop(tmp_path):
    run = endless(tmp_path)
    with pytest.raises(TimeoutError, match="it goes on"):
        run.wait(0.1)
    assert run.state == "running" and run.diagnosis is None
    began = time.monotonic()
    run.stop()
    assert time.monotonic() - began < 1 and ranks_alive() == []
    assert run.state == "stopped" and len(run.trace().spans()) > 0
    run.stop()  # once more does nothing
    with pytest.raises(RankFailed, match="The run was stopped."):
        run.wait()
    assert Run.open(run.directory).state == "stopped"


def test_an_interrupt_of_wait_stops_the_ranks(tmp_path):
    run = endless(tmp_path)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert run.state == "stopped" and ranks_alive() == []


def test_an_interrupt_that_reaches_the_ranks_is_no_failure(tmp_path):
    run = endless(tmp_path)
    os.kill(ranks_alive()[0].pid, signal.SIGINT)
    with pytest.raises(RankFailed, match="The run was interrupted."):
        run.wait(10)
    assert run.state == "stopped" and ranks_alive() == []


def script(tmp_path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


def started(tmp_path, text: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": str(tmp_path)}
    return subprocess.Popen([sys.executable, str(script(tmp_path, text))], cwd=tmp_path, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


ENDLESS = """
    import time
    from bigtrain_lab.runtime import launch
    def program(rank):
        while True:
            with rank.span("work"):
                time.sleep(0.01)
    run = launch(program, 2, directory="run")
    next(iter(run.events()))
    print("running", flush=True)
"""


def test_a_killed_kernel_leaves_no_rank_and_no_server(tmp_path):
    kernel = started(tmp_path, ENDLESS + "    time.sleep(1000)\n")
    assert kernel.stdout.readline() == "running\n"
    family = psutil.Process(kernel.pid).children(recursive=True)
    assert len(family) >= 3 and list(tmp_path.glob("bigtrain-*/store"))  # the server, the ranks, where they met
    kernel.kill()
    kernel.wait()
    gone, alive = psutil.wait_procs(family, timeout=5)
    assert alive == [] and not list(tmp_path.glob("bigtrain-*"))
    run = Run.open(tmp_path / "run")
    assert run.state == "stopped" and "ended before its ranks did" in run.diagnosis and len(run.trace().spans()) > 0


def test_a_script_that_ends_or_is_interrupted_leaves_nothing(tmp_path):
    kernel = started(tmp_path, ENDLESS)
    assert kernel.stdout.readline() == "running\n"
    assert kernel.wait(20) == 0 and Run.open(tmp_path / "run").diagnosis == "The program that launched the run ended."
    second = tmp_path / "second"
    second.mkdir()
    kernel = started(second, ENDLESS + "    run.wait()\n", start_new_session=True)
    assert kernel.stdout.readline() == "running\n"
    family = psutil.Process(kernel.pid).children(recursive=True)
    os.killpg(kernel.pid, signal.SIGINT)  # as a terminal and Jupyter do
    output, _ = kernel.communicate(timeout=20)
    assert "KeyboardInterrupt" in output or "interrupted" in output
    assert psutil.wait_procs(family, timeout=5)[1] == [] and Run.open(second / "run").state == "stopped"


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    kernel = started(tmp_path, """
        print("begin", flush=True)
        from bigtrain_lab.runtime import launch
        FACTOR = 7
        def helper(rank):
            return FACTOR * rank.index
        def program(rank):
            return {f"x{rank.index}": helper(rank)}
        run = launch(program, 2, directory="run")
        run.wait()
        print({name: int(x) for name, x in sorted(run.result.items())}, __file__ is not None)
    """)
    assert kernel.communicate(timeout=60)[0] == "begin\n{'x0': 0, 'x1': 7} True\n"


def test_main_is_hidden_only_while_ranks_start():
    main = sys.modules["__main__"]
    before = (getattr(main, "__file__", None), main.__spec__)
    with hidden_main():
        assert main.__spec__ is None and getattr(main, "__file__", None) is None
    assert (getattr(main, "__file__", None), main.__spec__) == before


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def talk(rank):
        rank.group().barrier()
        if fail and rank.index:
            os._exit(1)

    me = psutil.Process()

    def held():
        stores = [p for p in os.listdir(tmp_path) if p.startswith("bigtrain-")]
        return me.num_fds(), len(me.net_connections()), threading.active_count(), len(ranks_alive()), stores

    fail, before = False, None
    for i in range(6):
        fail = i % 2 == 1
        run = launch(talk, 2, directory=tmp_path / f"run{i}")
        events = list(run.events())
        assert all(isinstance(e, Span) for e in events) and len(events) >= 2
        if not fail:
            run.wait()
        if i == 1:
            before = held()
    deadline = time.monotonic() + 5
    while held() != before and time.monotonic() < deadline:  # a thread that has done its work needs a moment to end
        time.sleep(0.05)
    assert held() == before


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
    assert [next(events), next(events)] == [Span(0, "compute", "F", "0F0", 0, 1000, None), Scalar(0, "compute", "scalar", "loss", 1000, 0.5)]
    assert run.state == "running"
    Path(gate).touch()
    assert [(e.name, e.start) for e in events] == [("0F1", 1000), ("loss", 2000)] and run.state == "done"
    assert list(run.trace()) == list(Run.open(run.directory).events())


def test_memory_is_on_both_clocks_and_readings_only_measured(tmp_path):
    def program(rank):
        net = torch.nn.Sequential(*[torch.nn.Linear(4, 4), torch.nn.Tanh()] * 3)
        rank.watch(lambda: {"weights": net.parameters(), "gradients": [p.grad for p in net.parameters()]})
        with rank.span((Action("F", 0, 0),), 5):
            loss = net(torch.randn(2, 4)).sum()
        with rank.span((Action("B", 0, 0),), 5):
            loss.backward()

    run = launch(program, 1, cost={"F": 1, "B": 2}, directory=tmp_path / "run")
    modelled, measured = run.wait(), run.trace("measured")
    weights, saved = 4 * (16 + 4), 4 * 8
    assert [(e.kind, e.name, e.start, e.bytes) for e in modelled if hasattr(e, "bytes")] == [
        ("weights", "start", 0, weights), ("activations", "0F0", 1000, 4 * saved),
        ("gradients", "0B0", 3000, weights), ("activations", "0B0", 3000, 0)]
    readings = [e for e in measured if getattr(e, "inside", False)]
    assert readings and not any(getattr(e, "inside", False) for e in modelled)
    assert max(e.bytes for e in readings) == 4 * saved and modelled.peak_bytes(0) == measured.peak_bytes(0)
    assert [s.version for s in modelled.spans()] == [5, 5]


def test_without_the_clock_a_run_is_measured(tmp_path):
    run = launch(order := (lambda rank: rank.group().barrier()), 2, cost={"F": 1}, clock=False, directory=tmp_path / "run")
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
    assert run.summary() == {"clock": "modelled", "unit": "s", "steps": 1, "step_time": 18.0, "idle_share": 0.25,
                             "device_hours": 0.01, "energy_wh": 4.0}
    slots = launch(program, 2, cost={"F": 1}, watts=400, directory=tmp_path / "slots")
    slots.wait()
    assert slots.summary()["energy_wh"] is None and slots.summary()["step_time"] == 1


def finished(tmp_path) -> Path:
    def program(rank):
        for i in range(3):
            with rank.span(step(rank, i)):
                pass

    launch(program, 1, cost={"F": 1}, directory=tmp_path / "run").wait()
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
    log.write_bytes(whole[:-200] + b"\0" * 100 + b"\n" + whole[-100:])
    assert 0 < len(Run.open(directory).trace()) < 3


def test_other_versions_and_other_directories_are_refused(tmp_path):
    directory = finished(tmp_path)
    settings = json.loads((directory / "settings.json").read_text())
    (directory / "settings.json").write_text(json.dumps(settings | {"bigtrain-run": 99}))
    with pytest.raises(Impossible, match="written by run version 99, this library reads 1: run it again"):
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


# -- torchrun -------------------------------------------------------------------------------------------------


def test_under_torchrun_another_number_of_ranks_is_refused(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Impossible, match="asks for 4 ranks, but torchrun started 2: use torchrun --nproc-per-node=4"):
        launch(lambda rank: None, 4)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_under_torchrun_a_program_runs_in_place(tmp_path):
    text = """
        import os, torch
        from bigtrain_lab.runtime import launch
        from bigtrain_lab.schedule import Action
        def program(rank):
            with rank.span((Action("F", rank.index, 0),)):
                total = rank.group().all_reduce(torch.tensor([rank.index + 1.0]))
            return {f"x{rank.index}": total, f"pid{rank.index}": os.getpid()}
        run = launch(program, 2, cost={"F": 1}, directory="run")
        trace = run.wait()
        print(len(trace.spans()), run.result["x0"], int(run.result["pid" + os.environ["RANK"]]) == os.getpid())
    """
    port = str(free_port())
    both = []
    for rank in (0, 1):
        environment = {**os.environ, "PYTHONPATH": ROOT, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        both.append(subprocess.Popen([sys.executable, str(script(tmp_path, text))], cwd=tmp_path, env=environment, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for process in both:
        assert process.communicate(timeout=60)[0].splitlines()[-1:] == ["4 [3.] True"]
