"""Models cut in every way, on real processes: the clock as predicted, the bytes as predicted, the numbers of one process."""

import json

import pytest

from bigtrain_lab.checks import clocks_differ, tensors_differ
from bigtrain_lab.core import MEMORY_KINDS, Memory
from bigtrain_lab.experiments.partition import Partition
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.models import timing
from bigtrain_lab.partition import stage_times
from bigtrain_lab.runtime import Run
from bigtrain_lab.schedule import Schedule

SMALL = dict(layers=8, width=16, heads=2, sequence=8, rows=1, steps=2)
EXACT = dict(dtype="float64", optimizer="sgd", learning_rate=0.5, **SMALL)
CUTS = Partition.knobs()["partition"].menu()
QUICK = {("interleaved", "mine"), ("zb-h1", "worst"), ("1f1b", "balanced")}
ALL = [pytest.param(schedule, cut, marks=() if (schedule, cut) in QUICK else pytest.mark.slow) for schedule in Schedule.all() for cut in CUTS]


def held(trace, rank):
    return [(e.name, e.kind, e.bytes) for e in trace.events if isinstance(e, Memory) and e.rank == rank and not e.inside]


def finish(run):
    run.wait()
    return run


@pytest.mark.parametrize("schedule,partition", ALL)
def test_every_cut_under_every_schedule(schedule, partition, tmp_path):
    """Embedding alone, head alone, one block, most of the model: each stage is some of these."""
    cut = {"interleaved": "1 1 2 1 1 1 2 1"}.get(schedule, "1 2 6 1")
    hardware = {"balanced": "a100-nvlink", "worst": "rtx3090-pcie"}.get(partition, "unit")
    asked = Partition(partition=partition, schedule=schedule, cut=cut, hardware=hardware, **EXACT)
    run = finish(asked.run(directory=tmp_path / "run", jitter_s=0.002))
    predicted, modelled = asked.predict(), run.trace("modelled")
    assert clocks_differ(predicted, modelled) == []
    assert stage_times(predicted) == stage_times(modelled)
    assert tensors_differ(run.result, asked.reference()) == []
    for rank in range(4):
        assert held(predicted, rank) == held(run.trace("measured"), rank)
        assert {kind for _, kind, _ in held(predicted, rank)} <= set(MEMORY_KINDS)
    assert modelled.settings["facts"] == predicted.settings["facts"] == json.loads(json.dumps(asked.facts))


def test_the_cut_changes_no_weight():
    """The same training, cut differently, in one process and in four."""
    equal, balanced = (PipelineExperiment(partition=cut, hardware="rtx3090-pcie", **{**EXACT, "sequence": 64}) for cut in ("equal", "balanced"))
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
    assert clocks_differ(asked.predict(), run.trace("modelled")) == []


def test_a_run_from_before_there_were_cuts_opens(tmp_path):
    asked = PipelineExperiment(**SMALL)
    run = finish(asked.run(directory=tmp_path / "run"))
    about = json.loads((run.directory / "settings.json").read_text())
    assert about["settings"].pop("partition") == "equal"
    (run.directory / "settings.json").write_text(json.dumps(about))
    settings = Run.open(run.directory).settings["settings"]
    assert PipelineExperiment(**{name: value for name, value in settings.items() if name != "experiment"}) == asked
