"""What is kept is what was made: of other arguments, sources or classes nothing is restored."""

import pytest
import torch

from bigtrain_lab import Optimizer
from bigtrain_lab.experiments import checkpoint, staleness
from bigtrain_lab.experiments.memory import MemoryExperiment
from bigtrain_lab.runtime import kept
from bigtrain_lab.train import WHOLE, dry_run


@pytest.fixture
def made(tmp_path, monkeypatch):
    """What is dry run from now on; nothing is kept yet."""
    found, plain = [], dry_run.followed
    monkeypatch.setattr(
        dry_run, "followed", lambda *args, **place: found.append(1) or plain(*args, **place)
    )
    monkeypatch.setattr(kept, "kept_in", tmp_path.joinpath)
    return found


def anew(function, *given):
    """As another process calls it."""
    return kept.kept(function.__wrapped__)(*given)


def test_a_result_is_restored_until_what_made_it_changes(made, tmp_path, monkeypatch):
    asked = staleness.layer_run, 8, 2, True, True, WHOLE
    first = anew(*asked)
    assert anew(*asked) == first and len(made) == 1
    (file,) = (tmp_path / "kept").iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:80] + b"?" + whole[81:], b""):
        file.write_bytes(damaged)
        assert anew(*asked) == first == anew(*asked)
    assert len(made) == 4 and file.read_bytes() == whole
    assert first not in [
        anew(asked[0], *about, WHOLE) for about in ((9, 2, True, True), (8, 2, True, False))
    ]
    assert len(made) == 6
    monkeypatch.setattr(kept, "made_by", lambda: "other sources")
    monkeypatch.setattr(kept, "MOST", 3)
    assert anew(*asked) == first and len(made) == 7
    assert anew(*asked) == first and len(made) == 7 and len([*file.parent.iterdir()]) == 1


def test_what_a_class_typed_in_a_cell_makes_is_followed_and_in_no_file(made, tmp_path, family):
    held = []
    for momentum in (0, 0.9):
        body = {
            "__module__": "__main__",
            "name": "mine",
            "make": staticmethod(
                lambda weights, rate, m=momentum: torch.optim.SGD(weights, rate, m)
            ),
        }
        asked = (4,), "float32", type("Mine", (Optimizer,), body), 2
        assert checkpoint.updated(*asked) is checkpoint.updated(*asked)
        lab = MemoryExperiment(layers=1, width=16, vocabulary=256, optimizer="mine")
        held.append(lab.dry.kinds().get("optimizer", 0))
    assert held[0] == 0 < held[1] and len(made) == 4 and not [*tmp_path.iterdir()]
