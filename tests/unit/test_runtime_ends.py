"""Stopping, interrupting, ending: nothing is left behind, and a script is never run twice."""

import atexit
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path

import psutil
import pytest

import bigtrain_lab
from bigtrain_lab import Impossible, RankFailed, Run, launch
from bigtrain_lab.runtime.failure import progress
from bigtrain_lab.runtime.process import end, server as fork_server
from bigtrain_lab.runtime.process.pulse import Pulse, this_process
from tests.unit.jobs import forked, script
from tests.unit.ranks import after, ranks_alive, step, until

ROOT = str(Path(bigtrain_lab.__file__).parents[1])
pytestmark = pytest.mark.usefixtures("server")


def endless(tmp_path) -> Run:
    def forever(rank):
        for number in count():
            with rank.span(step(rank, number)):
                time.sleep(0.01)

    run = launch(forever, 2, directory=tmp_path / "run", cost={"F": 1})
    next(iter(run.events()))
    return run


def test_stop(tmp_path):
    run = endless(tmp_path)
    with pytest.raises(TimeoutError, match="it goes on"):
        run.wait(0.1)
    assert run.state == "running" and run.diagnosis is None
    run.pause()
    run.stop()
    assert ranks_alive() == [] and not run.paused
    assert run.state == "stopped" and len(run.trace().spans()) > 0
    with pytest.raises(RankFailed, match="The run was stopped."):
        run.wait()
    assert Run.open(run.directory).state == "stopped"


def test_paused_ranks_stand_still_and_their_clocks_leave_the_pause_out(tmp_path):
    def program(rank):
        for number in range(100):
            with rank.span(step(rank, number)):
                time.sleep(0.01)
                until(lambda: number < 99 or gate.exists())

    began, gate = time.monotonic(), tmp_path / "gate"
    run = launch(program, 2, directory=tmp_path / "run", cost={"F": 1}, stall_s=0.5)
    next(iter(run.events()))
    run.pause()
    at, told = time.monotonic(), len(run.trace())
    time.sleep(2)  # longer than the stall limit
    assert run.paused and run.state == "running" and len(run.trace()) == told
    paused_s = time.monotonic() - at
    run.resume()
    gate.touch()
    assert not run.paused and run.wait().makespan == 100
    last_s = run.trace("measured").events[-1].start / 1e9
    assert 0.9 < last_s <= run.spent_s <= time.monotonic() - began - paused_s
    assert Run.open(run.directory).spent_s is None


def test_a_rank_that_is_killed_ends_a_pause(tmp_path):
    run = endless(tmp_path)
    run.pause()
    ranks_alive()[0].kill()
    with pytest.raises(RankFailed, match="was killed by signal 9"):
        run.wait()
    assert not run.paused


def test_a_loop_without_an_end_is_said_with_its_line_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LINE_S", 1.0)

    def spin(rank):
        with rank.span(step(rank, 0)):
            while True:
                "round and round"

    run = launch(spin, 1, directory=tmp_path / "run")
    told = r"rank 0 has computed for \d+ s in 0F0 at .*test_runtime_ends.py:\d+, in spin"
    until(lambda: re.search(told, run.now) or run.state != "running")
    assert run.state == "running" and re.search(told, run.now)
    run.stop()


def test_a_result_that_is_home_ends_its_rank_whatever_a_tool_has_left(tmp_path):
    def program(rank):
        for hangs in (
            threading.Thread(target=threading.Event().wait).start,
            lambda: atexit.register(threading.Event().wait),
        ):
            hangs()
        return {"x": rank.index}

    assert launch(program, 1, directory=tmp_path / "run").result["x"] == 0


def test_an_interrupt_that_reaches_the_ranks_is_no_failure(tmp_path):
    run = endless(tmp_path)
    os.kill(ranks_alive()[0].pid, signal.SIGINT)
    with pytest.raises(RankFailed, match="The run was interrupted."):
        run.wait()
    assert run.state == "stopped" and ranks_alive() == []


@pytest.fixture
def tmp_path():
    """Where a kernel that is killed may leave something for no other test."""
    path = Path(tempfile.mkdtemp(prefix="bt-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def started(tmp_path, text: str, PYTHONPATH=ROOT, TMPDIR=None, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(TMPDIR or tmp_path)}
    return subprocess.Popen(
        [sys.executable, *script(tmp_path, text)],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )


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


@pytest.mark.slow
def test_a_run_of_another_process_is_followed_until_that_is_killed_and_leaves_nobody(tmp_path):
    kernel = started(tmp_path, ENDLESS + "    time.sleep(1000)\n")
    assert kernel.stdout.readline() == "running\n"
    family = psutil.Process(kernel.pid).children(recursive=True)
    assert len(family) >= 3  # the server, the ranks
    assert list(tmp_path.glob("bigtrain-*/run-*/store"))  # where they met
    run = Run.open(tmp_path / "run")
    events = run.events()
    seen = [next(events) for _ in range(50)]  # more than it had at first
    with pytest.raises(TimeoutError, match="it goes on"):
        run.wait(0.1)
    run.stop()  # not ours
    assert run.state == "running" and run.diagnosis is None
    kernel.kill()
    os.waitid(os.P_PID, kernel.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not buried
    assert psutil.wait_procs(family, timeout=300)[1] == []
    assert not list(tmp_path.glob("bigtrain-*"))
    assert run.state == "stopped" and len([*seen, *events]) >= 50
    with pytest.raises(RankFailed, match="ended before its ranks did"):
        run.wait()
    kernel.wait()


KILLED_BETWEEN = """
    import os
    import tempfile
    import time
    from bigtrain_lab.runtime import launch; from bigtrain_lab.runtime.process import server
    moment, tempfile.tempdir = os.environ["MOMENT"], None
    mark = os.path.abspath(moment)
    class Program:
        def __reduce__(self):
            return load, ()
    def load():
        import signal
        import torch.distributed as dist
        open(mark, "w").close()
        if moment == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.FileStore(mark + "-none/store", 2)  # waits for its folder, and keeps the interpreter's lock
    def forked(of, request, made=server.Forked):
        while request[0] == 1:
            if moment == "started" or os.path.exists(mark):
                time.sleep(moment != "started")
                os.kill(os.getpid(), 9)
        return made(of, request)
    server.Forked = forked
    os.setsid()
    print(os.getpid(), flush=True)
    launch(Program(), 2, directory="run " + moment).wait()
"""


@pytest.mark.slow
def test_a_launcher_killed_between_two_ranks_leaves_nobody(tmp_path):
    ended = forked(
        tmp_path,
        script(tmp_path, KILLED_BETWEEN),
        [
            {"MOMENT": moment, "TMPDIR": str(tmp_path)}
            for moment in ("started", "inside a call", "stopped")
        ],
    )
    assert [code for code, _ in ended] == [-signal.SIGKILL] * 3
    sessions = {int(output) for _, output in ended}

    def left() -> list:
        return [
            p
            for p in psutil.process_iter(["status"])
            if p.info["status"] != psutil.STATUS_ZOMBIE and session_of(p.pid) in sessions
        ]

    until(lambda: not left())
    assert not list(tmp_path.glob("bigtrain-*"))


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


@pytest.mark.parametrize(
    "launcher, alive",
    [
        (lambda host, pid, began: [host, pid, began], True),
        (lambda host, pid, began: [host, pid, began - 60], False),  # its pid was given away
        (lambda host, pid, began: ["elsewhere", pid, began], False),
        (lambda host, pid, began: [host, 2**22 + 1, began], False),
        (lambda host, pid, began: None, False),  # of a run that did not note it
    ],
)
def test_whether_a_launcher_lives(launcher, alive):
    assert Pulse.of(launcher(*this_process())).is_alive() == alive


@pytest.mark.slow
def test_a_script_runs_once_and_leaves_nothing_when_it_is_interrupted_and_when_it_ends(tmp_path):
    """Without a main guard."""
    kernel = started(
        tmp_path,
        """
        print("begin", flush=True)
        from bigtrain_lab.runtime import launch
        FACTOR = 7
        def helper(rank):
            return FACTOR * rank.index
        def program(rank):
            return {f"x{rank.index}": helper(rank)}
        def endless(rank):
            while True:
                with rank.span("work"):
                    pass
        result = launch(program, 2, directory="whole").result
        print({name: int(x) for name, x in sorted(result.items())}, __file__ is not None)
        run = launch(endless, 2, directory="interrupted")
        next(iter(run.events()))
        try:
            print("running", flush=True)
            run.wait()
        except KeyboardInterrupt:
            run = launch(endless, 2, directory="ended")
            next(iter(run.events()))
    """,
        start_new_session=True,
    )
    assert [kernel.stdout.readline() for _ in range(3)] == [
        "begin\n",
        "{'x0': 0, 'x1': 7} True\n",
        "running\n",
    ]
    family = psutil.Process(kernel.pid).children(recursive=True)
    os.killpg(kernel.pid, signal.SIGINT)  # as a terminal and Jupyter do
    kernel.communicate(timeout=500)
    assert kernel.returncode == 0 and psutil.wait_procs(family, timeout=300)[1] == []
    assert Run.open(tmp_path / "interrupted").state == "stopped"
    assert Run.open(tmp_path / "ended").diagnosis.startswith("Whatever started this run ended")


EDITED = """
    import os
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.path[0] + "/copy")
    import bigtrain_lab
    from bigtrain_lab.runtime import launch
    from bigtrain_lab.runtime.process.server import running
    def program(rank):
        import bigtrain_lab.core.lane, bigtrain_lab.runtime.talk.clock
        here = bigtrain_lab.core.lane.Lane is bigtrain_lab.runtime.talk.clock.Lane and bigtrain_lab.__file__.startswith(sys.path[0])
        return {"x": getattr(bigtrain_lab.core.lane, "EDIT", 0), "whole": here}
    file = Path(bigtrain_lab.core.lane.__file__)
    for edit in range(3):
        result = launch(program, 1, directory=f"run{edit}").result
        print(int(result["x"]), bool(result["whole"]), file.parts[-4])
        file.write_text(file.read_text() + f"\\nEDIT = {edit + 1}\\n")
    (file.parents[1] / "experiments" / "broken.py").write_text("def half(:")
    print(int(launch(program, 1, directory="run3").result["x"]))
    server = running().process.pid
    os.kill(server, 9)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    print(int(launch(program, 1, directory="run4").result["x"]))
    print(running().process.pid != server)
"""


@pytest.mark.slow
def test_an_edit_of_the_library_reaches_the_next_run_and_no_server_ends_of_it(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(
        Path(ROOT) / "bigtrain_lab",
        copy / "bigtrain_lab",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    kernel = started(tmp_path, EDITED, PYTHONPATH=str(copy))
    assert kernel.communicate(timeout=500)[0] == (
        "0 True copy\n1 True copy\n2 True copy\n3\n3\nTrue\n"
    )


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def talk(rank):
        rank.group().barrier()
        if fail and rank.index:
            after(rank, "@done")
            os._exit(1)

    me = psutil.Process()

    def held():
        for thread in threading.enumerate():
            if thread.name == "bigtrain_lab watch":
                thread.join()  # it closes its own pipe last
        # descriptors in garbage of earlier tests are closed now, not between the counts
        gc.collect()
        stores = [p for p in os.listdir(tmp_path) if p.startswith("bigtrain-")]
        return (
            me.num_fds(),
            len(me.net_connections()),
            threading.active_count(),
            ranks_alive(),
            stores,
        )

    kept = []
    for i in range(6):
        fail = i % 2 == 1
        assert len(list(launch(talk, 2, directory=tmp_path / f"run{i}").events())) >= 2
        kept.append(held())
    # what earlier tests held may go meanwhile
    assert all(last <= first for last, first in zip(kept[5], kept[1])), kept


# -- what goes wrong while ranks start -------------------------------------------------------------


def server_process() -> psutil.Process:
    return psutil.Process(fork_server.running().process.pid)


def ends_as_failed(run: Run, told: str) -> None:
    with pytest.raises(RankFailed, match=f"^{told}"):
        run.wait()
    assert Run.open(run.directory).state == "failed" and not any(
        pulse.is_alive() for pulse in run._watch._pulses.values()
    )
    assert not list(fork_server.room().glob("run-*"))


@pytest.mark.slow
def test_a_server_that_stops_or_ends_before_it_answers_is_the_end_of_the_run(tmp_path, monkeypatch):
    server = server_process()
    server.suspend()
    run = launch(lambda rank: None, 2, directory=tmp_path / "ended")
    until(lambda: run._watch._processes)
    server.kill()
    ends_as_failed(
        run,
        "The server that ranks are forked from has ended .*Run again: a new server starts by itself.",
    )
    launch(lambda rank: None, 1, directory=tmp_path / "again").wait()
    server = server_process()
    monkeypatch.setattr(fork_server, "SILENT_S", 0.05)
    server.suspend()
    try:
        ends_as_failed(
            launch(lambda rank: None, 2, directory=tmp_path / "asleep"),
            r"The server that ranks are forked from is stopped \(SIGSTOP or Ctrl-Z\): let it go on"
            rf" \(kill -CONT {server.pid}\)",
        )
    finally:
        server.resume()


@pytest.mark.parametrize("length", [10, 10**6])
def test_on_a_full_disk_the_end_is_kept_in_the_room_that_was_reserved(
    length, tmp_path, monkeypatch
):
    room, write = tmp_path / "end.reserve", end.write_whole

    def full(path, text):
        if room.exists() or len(text) > end.RESERVE_BYTES:
            raise Impossible(f"Cannot write {path}: No space left on device; free some space.")
        write(path, text)

    end.reserve(tmp_path)
    monkeypatch.setattr(end, "write_whole", full)
    told = end.End("failed", "Rank 1 cannot write. " + "ü" * length)
    assert told.note(tmp_path) is told
    assert [path.name for path in tmp_path.iterdir()] == ["end.json"]
    noted = end.End.noted(tmp_path)
    assert (
        noted.state == "failed"
        and noted.diagnosis.startswith("Rank 1 cannot write. ")
        and (noted == told) == (length == 10)
    )
