"""The accumulation lab beside the table of test_every_experiment.py: what its two rules differ by,
and what a device that holds one micro-batch can train."""

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Scalar
from bigtrain_lab.experiments.accumulate import Accumulate, compared

SMALL = {"layers": 1, "width": 16, "heads": 2, "sequence": 16, "dtype": "float64"}


def test_what_the_table_says(tmp_path):
    """With a short last window."""
    asked = Accumulate(**SMALL)
    predicted, modelled = asked.predict(), asked.run(directory=tmp_path / "run").wait()
    told = {q.name: (q.of(predicted), q.of(modelled)) for q in asked.quantities}
    assert told["step time"][0] == 10.5  # 10 micro-batches of 3 slots, 3 updates of half a slot
    saved, whole = told["activations, peak"][0], told["activations, window in one pass"][0]
    loss = asked.config.item_bytes
    assert whole - loss == 4 * (saved - loss)  # the large batch saves four times as much
    (expected, same), (unknown, off) = (
        told[f"gradient off by, mean of means{of}"] for of in (" of noise", "")
    )
    assert unknown is None and 10 < off < 1.2 * expected == 1.2 * same
    assert told["gradient off by, token-weighted"][1] < 1e-10
    errors = [e.value for e in modelled.where(Scalar, name="error, mean of means")]
    assert off == pytest.approx(50 * sum(errors[:2]))  # the last, short window is another question


def test_both_rules_are_one_on_equal_lengths():
    asked = Accumulate(**SMALL, spread=1.0)
    told = compared(asked.recipe.model(0), [asked.micro_batch(n) for n in range(4)])
    assert told["error, mean of means"] == told["error, token-weighted"] < 1e-13


def test_windows_and_lengths():
    asked = Accumulate(accumulation=4, spread=16, sequence=64, sequences=2)
    assert (
        asked.tokens() == [8, 20, 50, 128]
        and asked.tokens(1) == [128] * 4
        and Accumulate(accumulation=1).tokens() == [128]
    )
    assert asked.steps == 3 and asked.windows()[-1] == (8, 9)
    assert [int((asked.micro_batch(n)[1] >= 0).sum()) for n in range(5)] == [8, 20, 50, 128, 8]
    assert "made of 2 micro-batches, not 4" in asked.explain(asked.predict())[-1]


def test_a_device_that_holds_one_micro_batch_trains_a_window_of_eight(tmp_path):
    """And the comparison with the window in one pass, which it could not hold, is made beside the
    run."""
    asked = Accumulate(**SMALL, accumulation=8, micro_batches=8)
    asked = asked.replace(memory_mb=2 * asked.predict().peak_bytes(0) / 1e6)
    assert asked.activations(8) > 1.5 * asked.capacity_bytes
    assert run_differs(asked, asked.run(directory=tmp_path / "run")) == []
