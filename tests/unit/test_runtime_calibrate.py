"""The profile this-machine: kept once measured, measured anew by the doctor, never measured by
ranks of torchrun."""

import json

import pytest

from bigtrain_lab import Experiment, Impossible, doctor
from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.experiments.partition import Partition
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.runtime import calibrate, machine, this_machine
from tests.unit.test_peers import FIRST, under

FOUND = {
    "when": "2026-01-01T00:00+00:00",
    "memory_bytes": 2**34,
    "memory_bytes_per_s": 1e10,
    "alpha_s": 2e-5,
    "bytes_per_s": 3e9,
    "launch_s": 2e-6,
    "flops_per_s": {"float32": 5e10, "float64": 2e10, "bfloat16": 1e10},
}


@pytest.fixture(autouse=True)
def measurements(monkeypatch, tmp_path):
    """How often this machine was measured; nothing is kept at first."""
    counts = []
    monkeypatch.setattr(machine, "cache_directory", lambda: str(tmp_path))
    monkeypatch.setattr(calibrate, "measured", lambda: counts.append(1) or FOUND)
    return counts


def test_a_machine_is_measured_once():
    assert this_machine(measure=False) is None
    assert this_machine() == this_machine() == this_machine(measure=False)
    assert (
        this_machine().seconds(5e10, 1e10, "float32", operators=500_000) == 3
    )  # a CPU launches and computes in turn
    assert {row.tag for row in this_machine().constants()} == {"measured"}


def test_a_damaged_profile_is_measured_again(tmp_path, measurements):
    for text in ("{", "[]", json.dumps({"version": 0}), ""):
        this_machine()
        (tmp_path / "bigtrain_lab" / "this-machine.json").write_text(text)
        assert this_machine().flops_per_s["float32"] == 5e10
    assert len(measurements) == 5


def test_what_another_machine_has_kept_in_a_shared_home_is_not_this_one(monkeypatch, measurements):
    this_machine()
    monkeypatch.setattr(calibrate.platform, "node", lambda: "another")
    assert this_machine(measure=False) is None
    this_machine()
    assert this_machine(measure=False) and len(measurements) == 2


def test_ranks_of_torchrun_never_measure(monkeypatch, measurements):
    under(monkeypatch, **FIRST)
    with pytest.raises(
        Impossible, match="run `bigtrain doctor` on it once, or choose another hardware profile"
    ):
        this_machine()
    assert this_machine(measure=False) is None and not measurements


def test_the_doctor_measures_what_ranks_of_torchrun_then_use(monkeypatch, measurements):
    this_machine()
    level, says = doctor.speed(4)
    assert level == "ok" and len(measurements) == 2 and "50 GFLOP/s in float32" in says
    under(monkeypatch, **FIRST)
    assert this_machine().inside.alpha_s == 2e-5 and len(measurements) == 2


def other_machine(monkeypatch):
    """This machine from now on is 50 times slower than the one that was measured first."""
    monkeypatch.setattr(
        calibrate,
        "measured",
        lambda: {**FOUND, "flops_per_s": dict.fromkeys(FOUND["flops_per_s"], 1e9)},
    )
    calibrate.calibrate()


def test_what_follows_from_a_restored_run_is_priced_by_its_machine_too(monkeypatch):
    asked = PipelineExperiment(
        ranks=2, micro_batches=2, steps=1, layers=2, width=16, sequence=8, hardware="this-machine"
    )
    kept = json.loads(json.dumps({"experiment": "pipeline", **asked.told}))
    two, four = asked.predict(), asked.replace(micro_batches=4).predict()
    other_machine(monkeypatch)
    restored = Experiment.restored(kept)
    assert (
        clocks_differ(restored.replace(seed=0).predict(), two)
        == clocks_differ(restored.replace(micro_batches=4).predict(), four)
        == []
    )
    there_and_back = restored.replace(hardware="unit").replace(hardware="this-machine")
    assert clocks_differ(there_and_back.predict(), two) == []
    assert clocks_differ(PipelineExperiment(**asked.model_dump()).predict(), two) != []


def test_all_cuts_of_a_restored_run_are_compared_on_its_machine(monkeypatch):
    asked = Partition(
        ranks=2, micro_batches=2, steps=1, layers=4, width=16, sequence=8, hardware="this-machine"
    )
    kept = json.loads(json.dumps({"experiment": "partition", **asked.told}))
    other_machine(monkeypatch)
    assert Experiment.restored(kept).cuts == asked.cuts != Partition(**asked.model_dump()).cuts


@pytest.mark.parametrize("facts", ["x", ["machine"], {"machine": "x"}, {"machine": None}])
def test_damaged_facts_are_one_sentence(facts):
    with pytest.raises(Impossible, match="what (it|the run) kept .* cannot be read: run it again"):
        Experiment.restored({"experiment": "pipeline", "facts": facts})
