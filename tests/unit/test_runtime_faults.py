"""A rank that raises, exits, is killed or hangs: told in seconds, the right rank by its line, and
nobody left."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from bigtrain_lab import Action, Run
from bigtrain_lab.runtime.failure import frames, progress
from bigtrain_lab.runtime.failure.diagnose import deadlock, hang
from bigtrain_lab.runtime.process.pulse import STOPPED
from bigtrain_lab.train import recipe
from tests.unit.ranks import after, fails, step, until, written

HERE, DISK = __file__, "in uninterruptible sleep (disk)"
pytestmark = pytest.mark.usefixtures("server")


@pytest.mark.parametrize(
    "value, reason",
    [
        (lambda: 3, "returned int: let it return a dict"),
        (lambda: {"net": object()}, "returned net of type object: return arrays"),
    ],
)
def test_a_program_that_returns_something_else(value, reason):
    run = fails(lambda rank: value(), 1)
    assert reason in run.diagnosis and not list(run.directory.glob("*.partial"))


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
    assert len(run.trace().spans(1)) == 50 and not list(run.directory.glob("*.partial"))


def test_a_rank_that_raises_is_named_with_its_line_and_what_the_others_did():
    def program(rank):
        group = rank.group()
        for at in range(1 + rank.index // 2):
            with rank.span(step(rank, at)):
                if rank.index == 1:
                    after(rank, "@wait")
                    raise ValueError("the loss is bad")
        group.recv((rank.index + 1) % 3, name=Action("F", (rank.index + 1) % 3, 0))

    run = fails(program, cost={"F": 1})
    line = program.__code__.co_firstlineno + 6
    assert run.diagnosis.splitlines()[:2] == [
        "Rank 1 failed: ValueError: the loss is bad",
        f'  at {HERE}:{line}, in program: raise ValueError("the loss is bad")',
    ]
    assert "rank 0 waits for 1F0 from rank 1; rank 2 waits for 0F0 from rank 0" in run.diagnosis
    trace = run.trace()
    assert [s.name for s in trace.spans()] == ["0F0", "2F0", "2F1"]
    assert [trace.left(state) for state in ("failed", "waits", "in")] == [[1], [0, 2], [1]]
    assert trace.spells[0] == [("compute", 0, 1000), ("waits", 1000, 2000)]  # it is not idle
    assert "Traceback" in run.output(1)


def test_a_failure_inside_a_library_is_told_at_the_persons_line():
    def program(rank):
        torch.zeros(2) @ torch.zeros(3)

    run = fails(program, 1)
    assert (
        f"{HERE}:{program.__code__.co_firstlineno + 1}, in program" in run.diagnosis
        and "RuntimeError" in run.diagnosis
    )


def test_a_victim_that_fails_first_in_time_is_not_blamed():
    def program(rank):
        if rank.index == 0:
            after(rank, "@enter")
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:12345")
        with rank.span(step(rank, 0)):
            after(rank, "@raised")
            raise KeyError("the reason")

    assert fails(program, 2).diagnosis.startswith("Rank 1 failed: KeyError")


@pytest.mark.parametrize(
    "leave, told",
    [
        (lambda: sys.exit(3), r"Rank 1 left its program by sys.exit\(3\).\n  at .*in <lambda>"),
        (
            lambda: os._exit(0),
            (
                r"Rank 1 exited with code 0 before its program returned \(os._exit\?\); rank 1 was"
                r" in 1F0"
            ),
        ),
        (
            lambda: __import__("ctypes").string_at(0),
            (
                r"Rank 1 was killed by signal 11 \(SIGSEGV\).*\n  at .*test_runtime_faults.py:\d+,"
                r" in <lambda>"
            ),
        ),
    ],
    ids=["sys.exit", "exit 0", "crashed"],
)
def test_a_rank_that_leaves(leave, told):
    def program(rank):
        with rank.span(step(rank, 0)):
            if rank.index == 1:
                after(rank, "@wait")
                leave()
        rank.group().barrier()

    assert re.match(told, fails(program, 2, cost={"F": 1}).diagnosis)


def test_a_deadlock_is_told_as_its_cycle_long_before_the_stall_limit():
    def program(rank):
        group = rank.group()
        group.isend(torch.ones(1), (rank.index + 1) % 3, name="other")
        if rank.index < 2:
            group.recv(1 - rank.index, name=Action("F", 1 - rank.index, 7))
        group.recv(0, name="late")

    run = fails(program, stall_s=1000)
    told, *lines = run.diagnosis.splitlines()
    assert (
        told == "Deadlock: rank 0 waits for 1F7 from rank 1; rank 1 waits for 0F7 from rank 0. "
        "Meanwhile rank 2 waits for late from rank 0."
    )
    line = program.__code__.co_firstlineno + 4
    assert lines == [
        (
            f"  ranks 0 and 1 at {HERE}:{line}, in program: group.recv(1 - rank.index,"
            ' name=Action("F", 1 - rank.index, 7))'
        ),
        f'  rank 2 at {HERE}:{line + 1}, in program: group.recv(0, name="late")',
    ]
    assert [(w.rank, w.state, w.what, w.on, w.cycle) for w in run.waits] == [
        (0, "waits", "1F7", (1,), True),
        (1, "waits", "0F7", (0,), True),
        (2, "waits", "late", (0,), False),
    ]
    assert [f":{line}," in w.line for w in run.waits] == [True, True, False]
    assert Run.open(run.directory).waits == run.waits


@pytest.mark.parametrize(
    "logs, told",
    [
        (
            {0: ["wait 1 7"], 1: ["wait 0 8"]},
            "Deadlock: rank 0 waits for m from rank 1; rank 1 waits for m from rank 0",
        ),
        ({0: ["wait 1 7"], 1: ["send 0 7", "wait 0 8"]}, None),  # on its way
        (
            {0: ["wait 1 7", "got 7", "wait 1 7"], 1: ["send 0 7", "wait 0 8"]},
            "Deadlock",
        ),  # one was sent, two are wanted
        ({0: ["wait 1 7"], 1: ["send 0 6", "wait 0 8"]}, "Deadlock"),  # another channel
        (
            {0: ["wait 1 7"], 1: ["wait 2 8"], 2: ["send 0 7", "wait 1 9"]},
            "Deadlock: rank 1 waits for m from rank 2; rank 2",
        ),
        ({0: ["wait 1 7"], 1: ["wait 0 8", "got 8", "enter F"]}, None),  # at work
        ({0: ["wait 1 7"], 1: []}, None),  # not begun
        ({0: ["wait 1 7"], 1: ["finish"]}, None),  # it will go on: all that it sent is taken
        (
            {0: ["wait 1 7"], 1: ["send 0 6", "finish"]},
            "Deadlock: rank 0 waits for m from rank 1; rank 1 waits until rank 0 takes m.",
        ),
        ({0: ["in all"], 1: ["in all"]}, None),
        (
            {0: ["in all"], 1: ["wait 0 7"]},
            "Deadlock: rank 0 waits in sum for rank 1; rank 1 waits for m from rank 0.",
        ),
        (
            {0: ["in all", "got 0", "in all"], 1: ["in all", "got 0", "wait 0 7"]},
            "Deadlock: rank 0 waits in sum for rank 1",
        ),
        ({0: ["in all", "got 0", "in all"], 1: ["in all"]}, None),  # the first one ends for both
        (
            {0: ["in all"], 1: ["in more"]},
            "Deadlock: rank 0 waits in sum for rank 1; rank 1 waits in sum for rank 0.",
        ),
        (
            {0: ["in all"], 1: ["in all"], 2: ["done"]},
            (
                "Rank 0 waits in sum for rank 2, which has finished without calling it. Meanwhile"
                " rank 1"
            ),
        ),
        ({0: ["in all"], 1: ["got 7", "enter F"]}, None),
        (
            {0: ["wait 1 7"], 1: ["finish", "got -1", "done"]},
            "Rank 0 waits for m from rank 1, which has finished without sending it.",
        ),
        ({0: ["finish"], 1: ["done"]}, None),
        ({0: ["done"], 1: ["done"]}, None),
    ],
)
def test_a_deadlock_is_certain_from_the_logs(logs, told, tmp_path):
    found = deadlock(written(tmp_path, logs))
    assert found is None if told is None else found.startswith(told) and found == found.strip()


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize(
    "talk, told, lost",
    [
        (
            lambda group: group.recv(0, name=Action("F", 0, 7)),
            "Rank 1 waits for 0F7 from rank 0, which has finished without sending it.",
            "Rank 1 lost the connection to rank 0 at 0F7",
        ),
        (
            lambda group: group.isend(torch.zeros(1), 0, name=Action("F", 1, 7)),
            "Rank 1 sent 1F7 to rank 0, which has finished without taking it.",
            "Rank 1 lost the connection",
        ),
    ],
    ids=["unsent", "untaken"],
)
def test_a_message_without_another_end(talk, told, lost, record):
    """As the log tells, whichever is seen first: that it waits, or that its connection is gone."""

    def program(rank):
        pid = torch.tensor(os.getpid())
        rank.group().broadcast(pid, 0)
        if rank.index == 1:
            until(lambda: not psutil.pid_exists(int(pid)))
            time.sleep(0.2)  # its connections close
            talk(rank.group())

    assert fails(program, 2, record=record).diagnosis.startswith(told if record else lost)


def test_a_lab_is_a_person_s_code_wherever_it_is_installed(monkeypatch):
    monkeypatch.setattr(frames, "LIBRARIES", (str(Path(frames.PACKAGE).parent),))
    assert frames.is_foreign(progress.__file__) and not frames.is_foreign(recipe.__file__)


def test_a_module_that_the_ranks_do_not_have(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def program(rank):\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    sys.path.remove(str(tmp_path))
    assert (
        "ModuleNotFoundError: No module named 'only_here'" in fails(only_here.program, 2).diagnosis
    )


@pytest.mark.parametrize(
    "logs, kept, guilty",
    [
        (
            {0: ["wait 1 7"], 1: ["send 0 7", "wait 0 8"]},
            {},
            (
                "Rank 0 hangs: no progress for 5 s (rank 0 waits for m from rank 1; all that it"
                " waits for was sent)."
            ),
        ),
        (
            {0: ["wait 1 7"], 1: ["send 0 7", "wait 0 8"]},
            {0: STOPPED},
            "Rank 0 is stopped (SIGSTOP or Ctrl-Z): no progress for 5 s",
        ),
        (
            {0: ["wait 1 7"], 1: ["send 0 7", "wait 0 8"]},
            {1: STOPPED},
            "Rank 1 is stopped (SIGSTOP or Ctrl-Z): no progress for 5 s",
        ),  # it is still to arrive
        (
            {0: ["in all"], 1: ["in all"], 2: ["enter F"]},
            {},
            "Rank 2 hangs: no progress for 5 s (rank 2 was in F).",
        ),
        (
            {0: ["in all"], 1: ["in all"]},
            {1: STOPPED},
            (
                "Rank 1 is stopped (SIGSTOP or Ctrl-Z): no progress for 5 s (rank 1 waits for all"
                " ranks in sum)."
            ),
        ),
        (
            {0: ["meet"], 1: []},
            {1: STOPPED},
            (
                "Rank 1 is stopped (SIGSTOP or Ctrl-Z): no progress for 5 s (rank 1 had logged"
                " nothing yet)."
            ),
        ),
        (
            {0: [], 1: []},
            {1: STOPPED},
            (
                "Rank 1 is stopped (SIGSTOP or Ctrl-Z): no progress for 5 s (rank 1 had logged"
                " nothing yet)."
            ),
        ),
        (
            {0: ["meet"], 1: []},
            {},
            (
                "Rank 1 hangs: no progress for 5 s (rank 1 had logged nothing yet).\nMeanwhile rank"
                " 0 waits for rank 1 to begin."
            ),
        ),
        (
            {0: ["meet", "met", "enter F"], 1: ["meet", "met", "done"]},
            {1: STOPPED},
            "Rank 0 hangs: no progress for 5 s (rank 0 was in F).",
        ),
        (
            {0: ["wait 1 7"], 1: ["enter F"]},
            {1: DISK},
            (
                "Rank 1 is in uninterruptible sleep (disk): no progress for 5 s (rank 1 was in F)."
                " See whether the disk"
            ),
        ),
    ],
)
def test_who_is_guilty_of_a_hang(logs, kept, guilty, tmp_path):
    told = hang(tmp_path, written(tmp_path, logs), 5, kept)
    assert (
        told.startswith(guilty) and sum(line.startswith("Rank ") for line in told.splitlines()) == 1
    )


@pytest.mark.parametrize("record", [True, False])
def test_a_rank_that_somebody_stops_is_named_long_before_the_stall_limit(record, monkeypatch):
    def program(rank):
        if rank.index == 1:
            if record:
                after(rank, "@wait")
            os.kill(os.getpid(), signal.SIGSTOP)
        rank.group().barrier()

    monkeypatch.setattr(progress, "STOPPED_S", 0.5)
    run = fails(program, 2, stall_s=1000, record=record)
    if not record:
        assert run.diagnosis.startswith(
            "Rank 1 is stopped (SIGSTOP or Ctrl-Z): no progress for 0.5 s"
        )
        return
    assert (
        run.diagnosis
        == "Rank 1 is stopped (SIGSTOP or Ctrl-Z): no progress for 0.5 s (rank 1 had done no step"
        " yet). Find out who stops the processes of ranks, and run again.\nMeanwhile rank 0"
        " waits in barrier for rank 1."
    )
    assert [(w.state, w.what, w.on) for w in run.waits] == [
        ("waits", "barrier", (1,)),
        ("failed", STOPPED, ()),
    ]
