"""The lab of lesson 02: what the account predicts is what the ledger of a real run holds, to the
byte."""

import pytest

from bigtrain_lab.core.words import size
from bigtrain_lab.experiments.memory import MemoryExperiment
from bigtrain_lab.runtime import RankFailed

SMALL = {"layers": 2, "width": 32, "heads": 2, "rows": 8, "sequence": 24, "vocabulary": 512}


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
    state = asked.account.after("0U0")["optimizer"]
    assert asked.account.peak_of(1) - asked.account.peak_of(0) == state and size(state) in step
