"""Models cut in every way, beside the table of test_every_experiment.py that runs every cut."""

import pytest

from bigtrain_lab.checks import run_differs, tensors_differ
from bigtrain_lab.experiments.partition import Partition
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.models import timing

SMALL = {"layers": 8, "width": 16, "heads": 2, "sequence": 8, "rows": 1, "steps": 2}
EXACT = dict(dtype="float64", optimizer="sgd", learning_rate=0.5, **SMALL)


def test_the_cut_changes_no_weight():
    """The same training, cut differently."""
    common = {**EXACT, "sequence": 64}
    equal, balanced = (
        PipelineExperiment(partition=cut, hardware="rtx3090-pcie", **common)
        for cut in ("equal", "balanced")
    )
    worst = Partition(partition="worst", vocabulary=256, **common)
    expected = equal.reference()
    for other in (balanced, worst):
        found = other.reference()
        assert tensors_differ({name: found[name] for name in expected}, expected) == []
    assert worst.slices != equal.slices


@pytest.mark.slow
def test_a_measured_profile_is_one_for_the_prediction_and_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "FOR_S", 0.0)
    asked = Partition(profiled="measured", partition="balanced", **SMALL)
    # nowhere to find it: the ranks must have it from the experiment
    (tmp_path / "bigtrain_lab/pieces.json").unlink()
    run = asked.run(directory=tmp_path / "run")
    run.wait()
    assert run_differs(asked, run, tolerance=1e-5) == []
