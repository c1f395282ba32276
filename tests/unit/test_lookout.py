"""What the lookout of a rank of torchrun decides, without a torchrun: how an end is told once, and what must never keep a rank waiting."""

from types import SimpleNamespace

import pytest

from bigtrain_lab.core import Mesh
from bigtrain_lab.runtime import lookout
from bigtrain_lab.runtime.lookout import Lookout
from bigtrain_lab.runtime.process import Job

END = {"state": "failed", "diagnosis": "Rank 1 failed.", "waits": [], "teller": 1}


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


def lookout_of(directory, index=0, size=2, board=None, mates=None) -> Lookout:
    member = SimpleNamespace(host="a")
    team = SimpleNamespace(index=index, place=SimpleNamespace(ranks=size, agent=False), me=member, members=[member] * size,
                           board=board or Notes(), mates=mates or {})
    return Lookout(team, Job(str(directory), Mesh(world=size), None, 0, ""), 30)


def test_the_end_that_two_lookouts_find_has_one_teller(tmp_path):
    first, second = lookout_of(tmp_path, 0), lookout_of(tmp_path, 1)
    assert first._publish(END)["teller"] == second._publish(END)["teller"] == 1
    assert second.words(second._publish(END)).endswith(f"kept in {tmp_path}.") and first.words(END) == "Rank 1 failed."


def test_the_end_that_was_kept_first_counts(tmp_path):
    first, second = lookout_of(tmp_path, 0), lookout_of(tmp_path, 1)
    first._write_end({**END, "teller": 0})
    found = second._write_end({**END, "diagnosis": "Something else."})
    assert (found["diagnosis"], found["teller"]) == ("Rank 1 failed.", 0)


@pytest.mark.parametrize("kept", ["[1]", "{", "{}", "null"])
def test_an_end_that_cannot_be_read_keeps_no_rank_waiting(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(lookout.time, "sleep", lambda _: None)
    (tmp_path / "end.json").write_text(kept)
    ours = lookout_of(tmp_path, 1, board=Notes(gone=True))
    assert run(ours)["diagnosis"].startswith("Rank 1 lost the connection to the machine of rank 0")


def test_whatever_goes_wrong_in_a_lookout_keeps_no_rank_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(lookout.time, "sleep", lambda _: None)
    ours = lookout_of(tmp_path, 1, board=Notes(gone=True))
    monkeypatch.setattr(ours, "_told", lambda *_: 1 / 0)
    assert run(ours)["diagnosis"] == "The lookout of rank 1 failed: ZeroDivisionError: division by zero"


def run(ours: Lookout) -> dict:
    """What its thread does, once the rank's own work is over."""
    ours._came.set()
    ours._listen = set
    ours._look_out()
    assert ours._known.is_set()
    return ours._end


def test_a_lookout_looks_as_far_as_the_next_rank_that_lives(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(lookout, "is_alive", lambda process: looked.append(process) or process not in (4, 5))
    (tmp_path / "status-4.json").write_text('{"state": "done"}')
    ours = lookout_of(tmp_path, 3, 8, mates={rank: rank for rank in range(8) if rank != 3})
    ours._look_beside()
    assert looked == [4, 5, 6] and ours._board.notes == {"gone": 5}
    last = lookout_of(tmp_path, 7, 8, mates={rank: rank for rank in range(7)})
    looked.clear()
    last._look_beside()
    assert looked == [0] and last._board.notes == {}
