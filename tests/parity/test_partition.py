"""Models cut in every way, on real processes: the clock as predicted, the bytes as predicted, the
numbers of one process."""

import json

import pytest

from bigtrain_lab.checks import run_differs, tensors_differ
from bigtrain_lab.experiments.partition import Partition
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.models import timing
from bigtrain_lab.order.partition import stage_times
from bigtrain_lab.runtime import Run

SMALL = {"layers": 8, "width": 16, "heads": 2, "sequence": 8, "rows": 1, "steps": 2}
EXACT = dict(dtype="float64", optimizer="sgd", learning_rate=0.5, **SMALL)
RUNS = {  # cut -> schedule, profile and what else is not as in the other runs
    "equal": {"schedule": "pipedream"},
    "balanced": {
        "schedule": "1f1b",
        "hardware": "a100-nvlink",
        "optimizer": "momentum",
        "learning_rate": 0.1,
    },
    "worst": {"schedule": "zb-h1", "hardware": "rtx3090-pcie"},
    "mine": {"schedule": "interleaved", "cut": "1 1 2 1 1 1 2 1"},
}


def finish(run):
    run.wait()
    return run


@pytest.mark.parametrize("partition", Partition.knobs()["partition"].menu())
def test_every_cut(partition, tmp_path):
    """Embedding alone, head alone, one block, most of the model: each stage is some of these."""
    asked = Partition(partition=partition, **EXACT | RUNS.get(partition, {}))
    run = finish(asked.run(directory=tmp_path / "run", jitter_s=0.002))
    assert run_differs(asked, run) == []
    predicted, modelled = asked.predict(), run.trace("modelled")
    assert stage_times(predicted) == stage_times(modelled)
    assert (
        modelled.settings["facts"]
        == predicted.settings["facts"]
        == json.loads(json.dumps(asked.facts))
    )


def test_the_cut_changes_no_weight():
    """The same training, cut differently, in one process and in four."""
    equal, balanced = (
        PipelineExperiment(partition=cut, hardware="rtx3090-pcie", **{**EXACT, "sequence": 64})
        for cut in ("equal", "balanced")
    )
    worst = Partition(partition="worst", vocabulary=256, **{**EXACT, "sequence": 64})
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
    timing.kept_in().unlink()  # nowhere to find it: the ranks must have it from the experiment
    run = finish(asked.run(directory=tmp_path / "run"))
    assert run_differs(asked, run, tolerance=1e-5) == []


def test_a_run_from_before_there_were_cuts_opens(tmp_path):
    asked = PipelineExperiment(ranks=1, layers=1, width=16, sequence=4, micro_batches=1, steps=1)
    run = finish(asked.run(directory=tmp_path / "run"))
    about = json.loads((run.directory / "settings.json").read_text())
    assert about["settings"].pop("partition") == "equal"
    (run.directory / "settings.json").write_text(json.dumps(about))
    settings = Run.open(run.directory).settings["settings"]
    assert (
        PipelineExperiment(
            **{name: value for name, value in settings.items() if name != "experiment"}
        )
        == asked
    )
