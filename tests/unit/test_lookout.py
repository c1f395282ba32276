"""What the lookout of a rank of torchrun decides, without a torchrun: how an end is told once, and
what must never keep a rank waiting."""

import os
import platform
import signal
import time
from types import SimpleNamespace

import psutil
import pytest

from bigtrain_lab.core import Mesh
from bigtrain_lab.runtime.failure import progress
from bigtrain_lab.runtime.process import pulse
from bigtrain_lab.runtime.process.border import Place
from bigtrain_lab.runtime.process.child import Job
from bigtrain_lab.runtime.process.end import UNWRITABLE, End
from bigtrain_lab.runtime.process.pulse import Pulse
from bigtrain_lab.runtime.record.log import EventLog
from bigtrain_lab.runtime.torchrun.lookout import Lookout

END = End("failed", "Rank 1 failed.", teller=1)


GONE = {0: [platform.node(), 2**22, 0.0]}  # a rank whose process is no more


def end_of(directory, mates, code=0, over=False, meanwhile=lambda: None) -> End:
    """How the run of two ranks ended, as rank 1's lookout finds it; `over`: both have said so."""
    job = Job(str(directory), Mesh(world=2), None, 0, "")
    meeting = SimpleNamespace(have=lambda key: over, post=lambda key, value: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        found = Lookout(Place(1, 2), meeting, mates, job, 30)
        meanwhile()
        return found.finish(code)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_end_that_was_kept_first_counts(tmp_path):
    END._replace(teller=0).note(tmp_path, by=0)
    assert END._replace(diagnosis="Something else.").note(tmp_path, by=1) == END._replace(teller=0)
    assert [path.name for path in tmp_path.iterdir()] == ["end.json"]


@pytest.mark.parametrize("kept", ["[1]", "{", "{}", "null"])
def test_an_end_that_cannot_be_read_keeps_no_rank_waiting(kept, tmp_path):
    (tmp_path / "end.json").write_text(kept)
    assert end_of(tmp_path, {}, over=True) == End("done", teller=1)


def test_whatever_goes_wrong_in_a_lookout_keeps_no_rank_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(progress.Progress, "failed", lambda *_: 1 / 0)
    assert (
        end_of(tmp_path, GONE).diagnosis
        == "The lookout of rank 1 failed: ZeroDivisionError: division by zero"
    )


def test_a_rank_that_has_ended_without_a_word_is_told_by_another_of_its_machine(
    tmp_path,
):
    end = end_of(tmp_path, GONE)
    assert end.diagnosis.startswith("Rank 0 ended before its program returned") and end.teller == 1
    assert End.noted(tmp_path) == end


def test_a_rank_that_computes_says_so_and_one_that_torchrun_ends_too(tmp_path, monkeypatch):
    monkeypatch.setattr(Pulse, "count", lambda pulse: time.monotonic_ns())
    assert end_of(tmp_path, {}, meanwhile=lambda: os.kill(os.getpid(), signal.SIGTERM)) == End(
        "stopped", "Rank 1 was ended from outside (SIGTERM).", teller=1
    )
    assert (tmp_path / "pulse-1.txt").stat().st_size > 1


def test_a_rank_that_cannot_keep_its_record_says_so(tmp_path, monkeypatch):
    """And waits no longer than it may for the stacks of a rank that does not answer."""
    assert end_of(
        tmp_path,
        {},
        code=UNWRITABLE,
        meanwhile=lambda: monkeypatch.setattr(f"{Lookout.__module__}.STACKS_S", 0.1),
    ).diagnosis.startswith(f"Rank 1 cannot write to {tmp_path}: free some space")


# -- progress: one rule for a watch and a lookout --------------------------------------------------


@pytest.fixture
def following(tmp_path, monkeypatch):
    """(progress of two ranks with a stall limit of 5 s, its clock, what adds to a file, the times
    that stacks were asked for)"""
    clock, asked = SimpleNamespace(now=0.0, monotonic=lambda: clock.now), []
    for module in (progress, pulse):
        monkeypatch.setattr(module, "time", clock)
    processes = {
        rank: Pulse(2**22 + rank) for rank in range(2)
    }  # of nobody: what they are at is set below
    for process in processes.values():
        process._process = SimpleNamespace(
            cpu_times=lambda process=process: SimpleNamespace(user=process.used_s, system=0.0),
            is_running=lambda: True,
            status=lambda process=process: process.status,
        )
        process.used_s, process.status = 0.0, psutil.STATUS_SLEEPING
    found = progress.Progress(Job(str(tmp_path), Mesh(world=2), None, 0, ""), 5.0, processes)
    logs = [EventLog(tmp_path / f"events-{rank}.jsonl", rank) for rank in range(2)]

    def grows(what: str, *line):
        if what == "computes":
            processes[1].used_s += line[0]
        elif what == "status":
            processes[1].status = line[0]
        elif what == "output":
            with open(tmp_path / "rank-1.log", "a") as file:
                file.write("x\n")
        else:
            logs[int(what)].write(*line)

    def look(after_s: float) -> str | None:
        clock.now += after_s
        return found.trouble(lambda: asked.append(clock.now))

    yield look, grows, asked
    for log in logs:
        log.close()


@pytest.mark.parametrize("what", ["0", "output"])
def test_a_run_that_logs_or_prints_goes_on(what, following):
    look, grows, asked = following
    for second in range(1, 9):
        grows(what, "@enter", 0, "compute", f"step {second}")
        assert (
            look(4.9) is None and look(0.2) is None
        )  # at the next look, what grew is older than the limit
    assert look(4.7) is None and asked == []
    assert look(0.2).startswith(
        "Rank 0 hangs: no progress for 5 s"
        if what == "0"
        else "Rank 0 hangs: no progress for 5 s (rank 0 had logged nothing yet)"
    )
    assert len(asked) == 1


def test_a_rank_that_computes_goes_on_and_one_that_waits_does_not(following):
    look, grows, asked = following
    for _ in range(10):
        grows("computes", 0.3)
        assert look(4.0) is None and asked == []
    for _ in range(4):
        grows("computes", 0.01)  # as a rank that looks at a file now and then
        assert look(1.0) is None
    grows("computes", 0.2)
    assert (
        look(1.1).startswith("Rank 0 hangs: no progress for 5 s (rank 0 had logged nothing yet)")
        and len(asked) == 1
    )


def test_a_watch_that_was_stopped_itself_begins_anew(following):
    """Ctrl-Z stops the ranks too, and fg lets all go on."""
    look, _, asked = following
    assert look(1.0) is None and look(60.0) is None and look(4.0) is None and asked == []
    assert look(1.5).startswith("Rank 0 hangs")


def test_a_deadlock_is_told_when_it_is_seen_twice_with_nothing_written_between(following):
    look, grows, asked = following
    for rank in (0, 1):
        grows(str(rank), "@wait", 0, "compute", 1 - rank, 7, "x", "", ())
    assert look(1) is None  # logs have grown
    assert look(1) is None  # seen once
    grows("output")
    assert look(1) is None and look(1) is None  # once again
    grows("computes", 1.0)  # somebody does, which changes nothing
    assert look(1).startswith("Deadlock: rank 0 waits for x from rank 1") and len(asked) == 1
