"""What the lookout of a rank of torchrun decides, without a torchrun: how an end is told once, and
what must never keep a rank waiting."""

from types import SimpleNamespace

import psutil
import pytest

from bigtrain_lab.core import Mesh
from bigtrain_lab.runtime.failure import progress
from bigtrain_lab.runtime.process import pulse
from bigtrain_lab.runtime.process.child import Job
from bigtrain_lab.runtime.process.end import End
from bigtrain_lab.runtime.process.pulse import Pulse
from bigtrain_lab.runtime.record.log import EventLog
from bigtrain_lab.runtime.torchrun import lookout
from bigtrain_lab.runtime.torchrun.lookout import Lookout

END = End("failed", "Rank 1 failed.", teller=1)


class Notes:
    """A board of one process; `gone`: its holder has ended."""

    def __init__(self, gone=False):
        self.notes, self.gone = {}, gone

    def clone(self):
        return self

    def peek(self, key):
        if self.gone:
            raise RuntimeError("connection reset")
        return self.notes.get(key)

    def first(self, key, value):
        return self.notes.setdefault(key, value)

    def count(self, key, more=0):
        self.notes[key] = self.notes.get(key, 0) + more
        return self.notes[key]


def lookout_of(directory, index=0, size=2, board=None, mates=None) -> Lookout:
    member = SimpleNamespace(host="a")
    team = SimpleNamespace(
        index=index,
        place=SimpleNamespace(ranks=size, agent=False),
        me=member,
        members=[member] * size,
        board=board or Notes(),
        mates=mates or {},
    )
    return Lookout(team, Job(str(directory), Mesh(world=size), None, 0, ""), 30)


def test_the_end_that_was_kept_first_counts(tmp_path):
    END._replace(teller=0).note(tmp_path, by=0)
    assert END._replace(diagnosis="Something else.").note(tmp_path, by=1) == END._replace(teller=0)
    assert [path.name for path in tmp_path.iterdir()] == ["end.json"]


@pytest.mark.parametrize("kept", ["[1]", "{", "{}", "null"])
def test_an_end_that_cannot_be_read_keeps_no_rank_waiting(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(lookout, "LAST_S", 0)
    (tmp_path / "end.json").write_text(kept)
    ours = lookout_of(tmp_path, 1, board=Notes(gone=True))
    assert run(ours).diagnosis.startswith("Rank 1 lost the connection to the machine of rank 0")


def test_whatever_goes_wrong_in_a_lookout_keeps_no_rank_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(lookout, "LAST_S", 0)
    ours = lookout_of(tmp_path, 1, board=Notes(gone=True))
    monkeypatch.setattr(ours._progress, "failed", lambda *_: 1 / 0)
    assert (
        run(ours).diagnosis == "The lookout of rank 1 failed: ZeroDivisionError: division by zero"
    )


def run(ours: Lookout, listen=set) -> End:
    """What its thread does, once the rank's own work is over."""
    ours._came.set()
    ours._listen = listen
    ours._look_out()
    assert ours._known.is_set()
    return ours._end


# -- progress: one rule for a watch and a lookout --------------------------------------------------


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def following(tmp_path, monkeypatch):
    """(progress of two ranks with a stall limit of 5 s, its clock, what adds to a file, the times
    that stacks were asked for)"""
    clock, asked, printed = Clock(), [], []
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
    found = progress.Progress(
        Job(str(tmp_path), Mesh(world=2), None, 0, ""), 5.0, lambda: len(printed), processes
    )
    logs = [EventLog(tmp_path / f"events-{rank}.jsonl", rank) for rank in range(2)]

    def grows(what: str, *line):
        if what == "print":
            printed.append(line)
        elif what == "computes":
            processes[1].used_s += line[0]
        elif what == "status":
            processes[1].status = line[0]
        elif what == "now":
            return found.now
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


@pytest.mark.parametrize("what", ["0", "output", "print"])
def test_a_run_that_logs_or_prints_goes_on(what, following):
    look, grows, asked = following
    for second in range(1, 9):
        grows(what, "@enter", 0, f"step {second}")
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
        grows(str(rank), "@wait", 0, 1 - rank, 7, "x")
    assert look(1) is None  # logs have grown
    assert look(1) is None  # seen once
    grows("output")
    assert look(1) is None and look(1) is None  # once again
    grows("computes", 1.0)  # somebody does, which changes nothing
    assert look(1).startswith("Deadlock: rank 0 waits for x from rank 1") and len(asked) == 1


def test_a_rank_that_computes_says_so_and_its_lookout_alone_does_not(tmp_path, monkeypatch):
    """(seconds since the last look, processor time of the process in them, that of its lookout
    alone) -> whether it computes."""
    now = SimpleNamespace(clock=100.0, process=7.0, own=1.0)
    clocks = SimpleNamespace(
        monotonic=lambda: now.clock, process_time=lambda: now.process, thread_time=lambda: now.own
    )
    monkeypatch.setattr(lookout, "time", clocks)
    monkeypatch.setattr(pulse, "time", clocks)
    ours = lookout_of(tmp_path)
    ours._tell_of_signs()  # it has loaded what it needs
    said = ours._board.notes["signs"]
    for wall, used, own, computes in (
        (0.3, 0.3, 0, True),
        (0.3, 0.3, 0.1, False),
        (0.2, 0.06, 0, True),
        (1000, 40, 0, False),
        (4.9, 0.3, 0.1, False),
        (0.2, 0.01, 0.01, False),
        (0.1, 0.2, 0, False),
        (0.3, 0.1, 0, True),
        (20, 2, 0, True),
    ):
        now.clock, now.process, now.own = now.clock + wall, now.process + used, now.own + own
        ours._tell_of_signs()
        assert ours._board.notes["signs"] - said == computes, (wall, used, own)
        said = ours._board.notes["signs"]
