"""The lab of lesson 02: what the account predicts is what the ledger of a real run holds, to the
byte."""

import pytest

from bigtrain_lab.checks import clocks_differ, tensors_differ
from bigtrain_lab.core import Impossible
from bigtrain_lab.core.peak import peak
from bigtrain_lab.core.words import size
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.experiments.memory import KINDS, MemoryExperiment, at_peak, peak_of
from bigtrain_lab.runtime import RankFailed
from bigtrain_lab.view.report import rows
from tests.unit.followed import first_difference

SMALL = {"layers": 2, "width": 32, "heads": 2, "rows": 8, "sequence": 24, "vocabulary": 512}
ASKED = {
    "adam": MemoryExperiment(**SMALL, steps=3, dtype="float64", learning_rate=1e-2),
    "momentum": MemoryExperiment(**SMALL, optimizer="momentum", tied=True, dropout=0.1),
    "sgd": MemoryExperiment(
        **{**SMALL, "rows": 1, "vocabulary": 256}, optimizer="sgd", hardware="a100-nvlink"
    ),
}


each = pytest.mark.parametrize(
    "name", ["adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("momentum", "sgd"))]
)


class Runs(dict):
    """Each of ASKED, run when it is first asked for."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __missing__(self, name):
        self[name] = run = ASKED[name].run(directory=self.folder / name)
        run.wait()
        return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def test_a_small_model_takes_the_time_of_its_launches():
    """5 us an operator on a GPU, whose host launches ahead; an operator of an update is one for all
    weights together."""
    lab = ASKED["momentum"].replace(hardware="a100-nvlink")
    works, times = {kind: lab.dry.actions[f"0{kind}1"].work for kind in "FBU"}, lab.durations()
    assert min(works[kind].operators for kind in "FB") > 40
    assert [times[kind] for kind in "FBU"] == pytest.approx(
        [5e-6 * n for n in (works["F"].operators, works["B"].operators, 3)]
    )
    large = ASKED["sgd"].replace(width=1024, rows=16, sequence=256, vocabulary=4096)
    work = large.dry.actions["0F1"].work
    assert large.durations()["F"] == pytest.approx(
        work.flops / (0.859 * 19.5e12) + work.moved_bytes / (0.9 * 2039e9)
    )


@each
def test_the_modelled_run_is_the_predicted_one(runs, name):
    predicted, modelled = ASKED[name].predict(), runs[name].trace("modelled")
    assert clocks_differ(predicted, modelled) == []
    assert [at_peak(predicted, kind) for kind in KINDS] == [
        at_peak(modelled, kind) for kind in KINDS
    ]
    assert first_difference(predicted, modelled) is None
    assert peak(modelled, 0).place == peak(predicted, 0).place
    assert peak(modelled, 0).bytes == peak(predicted, 0).bytes == ASKED[name].account.peak_bytes


@each
def test_the_ledger_holds_what_the_account_predicts(runs, name):
    asked, measured = ASKED[name], runs[name].trace("measured")
    predicted = asked.predict()
    assert [peak_of(measured, step) for step in range(asked.steps)] == [
        asked.account.peak_of(step) for step in range(asked.steps)
    ]
    assert [peak_of(predicted, step) for step in range(asked.steps)] == [
        asked.account.peak_of(step) for step in range(asked.steps)
    ]
    assert sum(row.bytes for row in measured.at_peak(0)) == asked.account.peak_bytes
    storages = [
        sorted((row.kind, row.bytes, row.made) for row in trace.at_peak(0))
        for trace in (predicted, measured)
    ]
    assert storages[0] == storages[1]


def test_it_trains_as_one_process_does(runs):
    assert tensors_differ(runs["adam"].result, ASKED["adam"].reference()) == []


def test_the_table_tells_both_steps_and_every_kind(runs):
    asked = ASKED["adam"]
    table = rows(
        asked.quantities,
        asked.predict(),
        runs["adam"].trace("modelled"),
        runs["adam"].trace("measured"),
    )
    told = {
        row.quantity: (row.predicted.value, row.measured.value) for row in table if row.unit == "B"
    }
    assert all(row.difference == "✓ modelled, measured equal" for row in table if row.unit == "B")
    assert list(told) == [
        "peak, step 1",
        "peak, step 2",
        *(f"{kind} at the peak" for kind in KINDS),
    ]
    assert all(predicted == measured for predicted, measured in told.values())
    assert told["peak, step 2"][0] - told["peak, step 1"][0] == told["optimizer at the peak"][0]


@pytest.mark.slow
def test_with_a_limit_step_1_passes_and_step_2_fails(tmp_path):
    free = MemoryExperiment(**SMALL)
    first, second = free.account.peak_of(0), free.account.peak_of(1)
    asked = free.replace(memory_mb=(first + 1000) // 1000 / 1000)
    assert first <= asked.capacity_bytes < second
    assert any("does not fit" in sentence for sentence in asked.explain(asked.predict()))
    run = asked.run(directory=tmp_path / "run")
    with pytest.raises(
        RankFailed,
        match=r"runs out of memory at 0F1: .* optimizer .*Take fewer rows .*sgd or momentum",
    ):
        run.wait()
    assert [span.name for span in run.trace("modelled").spans(0)] == ["0F0", "0B0", "0U0"]


def test_it_says_where_the_peak_is_and_what_the_second_step_adds():
    asked = MemoryExperiment(**SMALL)
    peak, step = asked.explain(asked.predict())[-2:]
    assert "in the backward of step 2" in peak and "_log_softmax" in peak
    assert (
        step == f"Step 2 peaks {size(asked.account.after('0U0')['optimizer'])} above step 1: the"
        " optimizer's state is born in the first update."
    )
    assert len(asked.replace(optimizer="sgd").explain(asked.predict())) == 1


def test_settings_that_cannot_be():
    for settings, words in (
        ({"heads": 3}, "take 2 or 4 heads"),
        ({"optimizer": "lion"}, "choose one of sgd"),
        ({"rows": 0}, "rows is 0"),
    ):
        with pytest.raises(Impossible, match=words):
            MemoryExperiment(**settings)
    assert Experiment.named("memory") is MemoryExperiment
