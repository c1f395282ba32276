"""The accumulation lab on a real process: predicted event for event and byte for byte, and equal to
the large batch."""

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Impossible, Memory, Scalar
from bigtrain_lab.core.peak import peak
from bigtrain_lab.experiments.accumulate import Accumulate
from bigtrain_lab.view.figures import figure
from tests.unit.followed import first_difference

SMALL = {"layers": 1, "width": 16, "heads": 2, "sequence": 16, "dtype": "float64"}
SETTINGS = {
    "short last window": {},
    "last window of one": {"micro_batches": 5, "optimizer": "momentum"},
    "one micro-batch": {"accumulation": 1, "micro_batches": 2, "sequences": 3},
    "divides, clipped, sgd": {
        "micro_batches": 8,
        "clip": 0.1,
        "optimizer": "sgd",
        "hardware": "a100-nvlink",
    },
    "mean of means": {"rule": "mean of means", "optimizer": "momentum", "spread": 4.0},
    "more than there are": {
        "accumulation": 32,
        "micro_batches": 3,
        "compare": False,
        "dtype": "float32",
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    finished = {}

    def run_of(name):
        if name not in finished:
            asked = Accumulate(**{**SMALL, **SETTINGS[name]})
            run = asked.run(directory=tmp_path_factory.mktemp("runs") / "run")
            run.wait()
            finished[name] = asked, run
        return finished[name]

    return run_of


@pytest.mark.parametrize("name", SETTINGS)
def test_clock_bytes_and_numbers(name, runs):
    asked, run = runs(name)
    assert run_differs(asked, run, 1e-12 if asked.dtype == "float64" else 1e-5) == []
    assert len(asked.predict().where(Memory, inside=False).events) > 8


@pytest.mark.parametrize("name", SETTINGS)
def test_each_level_at_actions_and_inside_them_is_predicted_to_the_byte(name, runs):
    asked, run = runs(name)
    assert first_difference(asked.predict(), run.trace("modelled")) is None


def test_a_limit_between_the_ends_of_actions_and_the_peak_is_told_before_the_run():
    asked = Accumulate()
    trace = asked.predict()
    limit = (trace.peak_bytes(0) + peak(trace, 0).bytes) // 2
    short, enough = (
        asked.replace(memory_mb=limit / 1e6) for limit in (limit, peak(trace, 0).bytes)
    )
    assert (
        trace.peak_bytes(0) < short.capacity_bytes < peak(trace, 0).bytes == enough.capacity_bytes
    )
    assert any(
        "does not fit: rank 0 would hold" in said and " in 0F5 " in said
        for said in short.explain(short.predict())
    )
    assert not any("does not fit" in said for said in enough.explain(enough.predict()))


def row(asked, name):
    return next(quantity for quantity in asked.quantities if quantity.name == name)


def test_what_the_table_says(runs):
    asked, run = runs("short last window")
    predicted, modelled = asked.predict(), run.trace("modelled")
    told = {q.name: (q.of(predicted), q.of(modelled)) for q in asked.quantities}
    assert all(a == b for name, (a, b) in told.items() if row(asked, name).exact and b is not None)
    assert told["step time"] == (
        10.5,
        10.5,
    )  # 10 micro-batches of 3 slots in 3 updates of half a slot
    saved, whole = told["activations, peak"][0], told["activations, window in one pass"][0]
    assert whole - (z := asked.config.dtype.itemsize) == 4 * (
        saved - z
    )  # the large batch saves four times as much
    off, expected = (
        told["gradient off by, mean of means"][1],
        told["gradient off by, mean of means"][0],
    )
    assert told["gradient off by, token-weighted"][1] < 1e-10 and 10 < off < 1.2 * expected
    whole = [e.value for e in modelled.where(Scalar, name="error, mean of means")][:2]
    assert off == pytest.approx(
        50 * sum(whole)
    )  # the last window ends early, and is another question
    assert expected == pytest.approx(100 * (asked_a_over_h(asked.tokens()) - 1) ** 0.5)
    assert 0.5 < told["cosine, mean of means"][1] < 1


def asked_a_over_h(tokens):
    return sum(tokens) / len(tokens) * sum(1 / n for n in tokens) / len(tokens)


def test_both_rules_are_one_on_equal_lengths():
    from bigtrain_lab.experiments.accumulate import compared

    asked = Accumulate(**SMALL, spread=1.0)
    told = compared(asked.recipe.model(0), [asked.micro_batch(n) for n in range(4)])
    assert told["error, mean of means"] == told["error, token-weighted"] < 1e-13
    told = compared(
        asked.recipe.model(0), [asked.replace(spread=16.0).micro_batch(n) for n in range(4)]
    )
    assert told["error, mean of means"] > 0.1 and told["error, token-weighted"] < 1e-13


def test_windows_lengths_and_words():
    asked = Accumulate(accumulation=4, spread=16, sequence=64, sequences=2)
    assert (
        asked.tokens() == [8, 20, 50, 128]
        and asked.tokens(1) == [128] * 4
        and Accumulate(accumulation=1).tokens() == [128]
    )
    assert asked.steps == 3 and asked.windows()[-1] == (8, 9)
    assert [int((asked.micro_batch(n)[1] >= 0).sum()) for n in range(5)] == [8, 20, 50, 128, 8]
    said = asked.explain(asked.predict())
    assert (
        said[-1]
        == "The last update is made of 2 micro-batches, not 4, and divides by their tokens."
    )
    assert (
        "counts 6.44 times what it should, one of the longest 0.40 times. Where tokens' gradients"
        " are noise its gradient is off by about 127%" in said[-2]
    )
    assert asked.describe().endswith("in a window 4 micro-batches of 8, 20, 50, 128 tokens")
    assert (
        asked.replace(accumulation=1).describe().endswith("in a window 1 micro-batch of 128 tokens")
    )
    few, many = (
        asked.replace(accumulation=32),
        asked.replace(accumulation=32, micro_batches=50),
    )  # of the window's 32, 10 and all
    assert (
        few.describe().endswith("in a window 10 micro-batches of 8 .. 18 tokens")
        and few.tokens() == many.tokens()[:10]
    )
    assert many.describe().endswith("in a window 32 micro-batches of 8 .. 128 tokens")


def test_the_figure_draws_what_the_trace_tells(runs):
    asked, run = runs("short last window")
    bars = [drawn for drawn in figure("accumulation", asked.predict()).data if drawn.type == "bar"]
    assert [(bar.width, bar.y[0]) for bar in bars] == list(
        zip(asked.tokens(), asked.facts["counts"]["mean of means"])
    )
    assert all(
        bar.width * bar.y[0] == pytest.approx(sum(asked.tokens()) / 4) for bar in bars
    )  # equal areas
    dots = [
        drawn
        for drawn in figure("accumulation", run.trace("modelled")).data
        if drawn.type == "scatter" and drawn.mode == "markers"
    ]
    assert len(dots) == 1 and dots[0].x == (0, 1, 2)
    assert list(dots[0].y) == [
        e.value for e in run.trace("modelled").where(Scalar, name="error, mean of means")
    ]
    (level,) = [
        drawn
        for drawn in figure("accumulation", run.trace("modelled")).data
        if drawn.type == "scatter" and drawn.mode == "lines" and drawn.xaxis == "x3"
    ]
    whole, short = (100 * (asked_a_over_h(asked.tokens()[:count]) - 1) ** 0.5 for count in (4, 2))
    assert [100 * y for y in level.y] == pytest.approx([whole] * 4 + [short] * 2) and level.x == (
        -0.5,
        0.5,
        0.5,
        1.5,
        1.5,
        2.5,
    )
    with pytest.raises(Impossible, match="take one of the experiment accumulate"):
        from bigtrain_lab.order.schedules.gpipe import GPipe
        from bigtrain_lab.order.simulate import simulate

        figure("accumulation", simulate(GPipe(2, 2), {"F": 1, "B": 2}))


def test_a_device_that_holds_one_micro_batch_trains_a_window_of_eight(tmp_path):
    """And the comparison with the window in one pass, which it could not hold, is made beside the
    run."""
    asked = Accumulate(**SMALL, accumulation=8, micro_batches=8)
    asked = asked.replace(memory_mb=2 * asked.predict().peak_bytes(0) / 1e6)
    assert asked.activations(8) > 1.5 * asked.capacity_bytes
    run = asked.run(directory=tmp_path / "run")
    run.wait()
    assert run_differs(asked, run) == []


@pytest.mark.parametrize(
    "settings,sentence",
    [
        ({"accumulation": 0}, "accumulation is 0: it must be a whole number from 1 to 32"),
        ({"rule": "sum"}, "rule is 'sum': choose one of token-weighted, mean of means"),
        ({"optimizer": "lion"}, "optimizer is 'lion': choose one of"),
        ({"width": 24, "heads": 5}, "5 heads cannot share a width of 24"),
        ({"text": "/no/such/file"}, "cannot be read"),
    ],
)
def test_what_is_refused(settings, sentence):
    with pytest.raises(Impossible, match=sentence):
        Accumulate(**settings)
