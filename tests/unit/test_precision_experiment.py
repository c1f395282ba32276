"""The experiment `precision`: prediction equals the run at every level, and each broken level fails
by the mechanism that it names."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.core import Histogram, Impossible, Scalar
from bigtrain_lab.core.formats import Exponents
from bigtrain_lab.experiments.precision import Precision
from bigtrain_lab.models import parameters, theory
from bigtrain_lab.order.rates import checkpoint_bytes, field, last, reading_rate, training_rate
from bigtrain_lab.techniques.mixed_precision import LEVELS
from bigtrain_lab.view import report
from bigtrain_lab.view.figures import figure
from tests.unit.followed import first_difference

TINY = {"steps": 3, "layers": 1, "width": 32, "rows": 4, "train_size": 32, "dev_size": 64}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """level -> (experiment, finished run), each on a real rank."""
    found, folder = {}, tmp_path_factory.mktemp("precision")
    for level in LEVELS:
        asked = Precision(level=level, every=2 * (level == "fp16"), **TINY)
        found[level] = asked, asked.run(directory=folder / level)
    for _, run in found.values():
        run.wait()
    return found


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "fp16-no-masters"])
def test_prediction_equals_the_run(runs, level):
    """Each start, each end, each byte at actions and inside them. fp16-no-masters skips steps."""
    asked, run = runs[level]
    assert clocks_differ(asked.predict(), run.trace("modelled")) == []
    assert first_difference(asked.predict(), run.trace("modelled")) is None


@pytest.mark.parametrize("level", LEVELS)
def test_the_run_is_the_training_that_nobody_watches(runs, level):
    asked, run = runs[level]
    expected = asked.reference()
    assert expected.keys() == run.result.keys() and len(expected["loss"]) == 3
    for name, values in expected.items():
        assert np.array_equal(run.result[name], values, equal_nan=True), name


def test_state_is_16_bytes_a_weight_with_masters_and_without_mixed_precision(runs):
    """2 + 4 + 4 + 8 = 18 while the gradient is float32 (14 to keep, 12 in float32), less what the
    norms' float32 saves; 8 for all in half."""
    sizes = {level: asked.bytes for level, (asked, _) in runs.items()}
    norms = 2 * 32 * (2 * 1 + 1)  # weight and bias of a block's two norms, and of the head's
    low = theory.encoder_weights(runs["fp16"][0].config) - norms
    steps = 4 * len(
        [name for name in runs["fp16"][1].result if name not in ("loss", "F1")]
    )  # Adam counts its steps, one number a tensor
    assert low + norms == parameters(runs["fp16"][0].config)
    assert sizes["fp16"]["weights"] + sizes["fp16"]["master"] == 6 * low + 4 * norms
    assert runs["fp32"][0].state_bytes == 16 * (low + norms) + steps
    assert runs["bf16"][0].state_bytes == 18 * low + 16 * norms + steps
    assert runs["fp16-pure"][0].state_bytes == 8 * (low + norms) + steps
    for level, (_, run) in runs.items():
        assert checkpoint_bytes(run.trace("modelled")) == sum(
            sizes[level][kind] for kind in ("weights", "master", "optimizer")
        )


def test_the_forward_saves_less_in_half(runs):
    saved = {level: asked.bytes["activations"] for level, (asked, _) in runs.items()}
    assert (
        saved["fp16-pure"] * 2 - saved["fp32"] == 4 * 8
    )  # the rows of the marks are whole numbers
    assert saved["fp32"] / 2 < saved["bf16"] == saved["fp16"] < saved["fp32"]


def test_gradients_are_counted_where_they_are_asked_for(runs):
    """At steps 0 and 2, of each weight, and of the output of each Linear, block, embedding and
    head."""
    asked, run = runs["fp16"]
    trace = run.trace("modelled")
    found = list(trace.where(Histogram))
    names = [event.name for event in found]
    weights = [name for name in run.result if name not in ("loss", "F1")]
    assert names.count("weight gradient layers.1.mlp.up.weight") == 2
    assert sum(name.startswith("weight gradient") for name in names) == 2 * len(weights)
    assert sum(name.startswith("activation gradient") for name in names) == 2 * (3 + 5)
    whole = Exponents.of(next(e for e in found if e.name == "activation gradient layers.1.mlp.up"))
    assert whole.nonzero + whole.zeros + whole.not_finite == 4 * 40 * 4 * 32


def test_the_rates_are_those_of_the_spans(runs):
    asked, run = runs["fp32"]
    for trace in (asked.predict(), run.trace("modelled")):
        times = asked.durations()
        assert training_rate(trace) == pytest.approx(
            1 / (times["F"] + times["B"] + times["U"]), rel=1e-5
        )
        assert reading_rate(trace) == pytest.approx(1 / times["A"], rel=1e-5)
    measured = run.trace("measured")
    updates = [span.end for span in measured.spans(0) if span.kind == "U"]
    assert training_rate(measured) == pytest.approx(
        3e9 / (updates[-1] - measured.spans(0)[0].start)
    )  # wall time is in nanoseconds


def test_a_step_takes_as_long_in_the_table_as_in_the_line_of_a_run(runs):
    """The examination follows the training, and is no part of a step."""
    asked, run = runs["fp32"]
    trace = run.trace("modelled")
    (told,) = [q.of(trace) for q in asked.quantities if q.name == "step time"]
    assert told == trace.step_time == run.summary()["step_time"] < trace.makespan / trace.steps


def test_half_is_modelled_faster_and_masters_cost_time(runs):
    rates = {level: training_rate(asked.predict()) for level, (asked, _) in runs.items()}
    assert (
        rates["bf16"] < rates["bf16-no-masters"]
        and rates["fp16"] < rates["fp16-no-scaling"] == rates["bf16"]
    )
    large = {
        level: training_rate(
            Precision(level=level, layers=12, width=768, heads=12, rows=256, steps=1).predict()
        )
        for level in ("fp32", "bf16")
    }
    assert 4 < large["bf16"] / large["fp32"] < 16  # an A100's float32 without TF32 against its bf16


def test_a_run_says_what_it_learned(runs):
    trace = runs["fp16"][1].trace("modelled")
    assert (
        len(list(trace.where(Scalar, name="loss")))
        == len(list(trace.where(Scalar, name="loss scale")))
        == 3
    )
    assert last(trace, "loss scale") == 2**13 and last(trace, "skipped steps") == 0
    assert 0 <= last(trace, "micro F1") <= 1


def test_where_every_step_was_skipped_the_table_says_why_less_is_held_than_was_predicted(tmp_path):
    asked = Precision(level="fp16", loss_scale=2.0**40, **TINY)
    run = asked.run(directory=tmp_path / "run")
    run.wait()
    rows = {
        row.quantity: row
        for row in report.rows(asked.quantities, asked.predict(), run.trace("modelled"))
    }
    for name in ("peak memory, between actions", "checkpoint"):
        (told,) = rows[name].differences
        assert (
            told.holds is None
            and told.text.startswith("modelled -")
            and told.text.endswith(" (every step was skipped, so no optimizer state was made)")
        )


@pytest.mark.parametrize(
    "ask, mend",
    [
        ({"level": "fp12"}, "level is 'fp12': choose one of fp32, bf16"),
        (
            {"level": "bf16", "hardware": "titan-rtx-nvlink"},
            "titan-rtx-nvlink states no speed for bfloat16.*float32 or float16",
        ),
        ({"width": 48, "heads": 5}, "5 heads cannot share"),
        ({"optimizer": "adagrad"}, "optimizer is 'adagrad'"),
    ],
)
def test_what_cannot_run_is_refused(ask, mend):
    with pytest.raises(Impossible, match=mend):
        Precision(**ask)


def test_a_loss_scale_has_no_effect_where_nothing_is_scaled():
    assert {"loss_scale", "growth_interval"} <= Precision.idle_settings({"level": "bf16"})
    assert not {"loss_scale", "growth_interval"} & Precision.idle_settings({"level": "fp16"})


# Broken levels. Each against fp32 at the same settings, on one small set of sentences that fp32
# learns by heart.

BY_HEART = {
    "layers": 1,
    "width": 32,
    "rows": 16,
    "train_size": 64,
    "dev_size": 64,
    "steps": 80,
    "learning_rate": 3e-3,
}


def losses(**settings):
    return Precision(**{**BY_HEART, **settings}).reference()["loss"]


def falls(losses):
    return losses[:10].mean() - losses[-10:].mean()


@pytest.mark.slow
def test_fp16_without_scaling_fails_where_gradients_are_small():
    """The gradients of a mean over 1.6 million samples: fp32 learns, fp16 with scaling learns
    alike, fp16 without does not."""
    plain, scaled, without = (
        losses(level=level, loss_weight=1e-5, steps=50)[-10:].mean()
        for level in ("fp32", "fp16", "fp16-no-scaling")
    )
    assert scaled == pytest.approx(plain, rel=0.05)
    assert without > 1.7 * plain


@pytest.mark.slow
@pytest.mark.parametrize("level", ["fp16-no-masters", "fp16-pure"])
def test_fp16_moments_break_in_the_first_step(level):
    assert torch.tensor(1e-8).half() == 0  # Adam's eps
    found = losses(level=level, steps=4)
    assert np.isfinite(found[0]) and np.isnan(found[1:]).all()


@pytest.mark.slow
def test_bf16_without_masters_stalls_at_a_small_learning_rate():
    """And fp16 without masters does not, where the optimizer has no moments that underflow: bf16
    needs masters more."""
    small = {"train_size": 32, "learning_rate": 3e-5, "steps": 80}
    plain, masters, without = (
        falls(losses(level=level, **small)) for level in ("fp32", "bf16", "bf16-no-masters")
    )
    assert masters == pytest.approx(plain, rel=0.1)
    assert plain > 0.2 and without < 0.75 * plain
    plain, without = (
        losses(level=level, optimizer="momentum", learning_rate=0.01, steps=40)[-10:].mean()
        for level in ("fp32", "fp16-no-masters")
    )
    assert without == pytest.approx(plain, rel=0.1)


@pytest.mark.slow
def test_the_whole_flow_trains_as_fp32_does():
    """Five seeds, gradients of a mean over 1.6 million samples: the difference of the mean last
    losses is at most two standard errors of it, and without scaling it is more."""
    asked = {"steps": 30, "loss_weight": 1e-5}
    ends = {
        level: np.array([losses(level=level, seed=seed, **asked)[-5:].mean() for seed in range(5)])
        for level in ("fp32", "fp16", "bf16", "fp16-no-scaling")
    }
    off = {
        level: (
            abs(found.mean() - ends["fp32"].mean())
            / np.sqrt((ends["fp32"].var(ddof=1) + found.var(ddof=1)) / 5)
        )
        for level, found in ends.items()
    }
    assert 0 < off["fp16"] <= 2 and 0 < off["bf16"] <= 2
    assert off["fp16-no-scaling"] > 2
    assert ends["fp32"].mean() < 2.5  # log 21 = 3.04 at the start: and it did learn


# The table of the field


def test_the_field_holds_each_levels_both_clocks(runs):
    traces = [run.trace(clock) for _, run in runs.values() for clock in ("modelled", "measured")]
    rows = {row.name: row for row in field(traces)}
    assert list(rows) == list(LEVELS)
    assert rows["bf16"].training == {
        clock: training_rate(runs["bf16"][1].trace(clock)) for clock in ("modelled", "measured")
    }
    assert (
        rows["fp16"].checkpoint_bytes
        > rows["fp32"].checkpoint_bytes
        > rows["fp16-pure"].checkpoint_bytes
    )
    assert rows["fp32"].peak_bytes > runs["fp32"][1].trace("modelled").peak_bytes(
        0
    )  # inside actions too
    assert rows["fp16-no-masters"].skipped > 0 and len(rows["fp32"].losses) == 3


def test_levels_are_drawn_with_a_cross_where_a_loss_is_no_number(runs):
    drawn = figure(
        "levels",
        [run.trace(clock) for _, run in runs.values() for clock in ("modelled", "measured")],
    )
    lines = [each for each in drawn.data if each.type == "scatter"]
    assert [each.name for each in lines if each.name] == list(LEVELS)
    crossed = {
        name
        for each in drawn.layout.annotations
        for name in re.findall(r"✕ <b>([\w-]+)</b>", each.text)
    }
    assert (
        crossed
        == {level for level, (_, run) in runs.items() if np.isnan(run.result["loss"]).any()}
        == {"fp16-no-masters", "fp16-pure"}
    )
    titles = [
        each.text
        for each in drawn.layout.annotations
        if "<br>" in each.text and "nan" not in each.text
    ]
    assert len(titles) == sum(each.type == "bar" for each in drawn.data) == 8
    predicted = figure("levels", [asked.predict() for asked, _ in runs.values()])
    assert {each.type for each in predicted.data} == {"bar"}  # no curves
    assert (
        sum(each.type == "bar" for each in predicted.data) == 4
    )  # no scores; the two rates, checkpoint, peak


def test_a_trace_of_another_experiment_has_no_level(runs):
    with pytest.raises(Impossible, match="tells no level of precision"):
        figure("levels", replace(runs["fp32"][0].predict(), settings={}))
