"""The experiment `precision`: what each level holds, and how fast it is."""

import re
from dataclasses import replace

import pytest

from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.core import Histogram, Impossible
from bigtrain_lab.core.formats import Exponents
from bigtrain_lab.experiments.precision import Precision
from bigtrain_lab.models import parameters, theory
from bigtrain_lab.order.rates import checkpoint_bytes, field, training_rate
from bigtrain_lab.panel.rivals import rival
from bigtrain_lab.techniques.mixed_precision import LEVELS
from bigtrain_lab.view.figures import figure

TINY = {"steps": 3, "layers": 1, "width": 32, "rows": 4, "train_size": 32, "dev_size": 64}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """level -> (experiment, finished run) of those that differ in kind, each on a real rank."""
    found, folder = {}, tmp_path_factory.mktemp("precision")
    for level in ("fp32", "fp16", "fp16-no-masters"):
        asked = Precision(level=level, every=2 * (level == "fp16"), **TINY)
        found[level] = asked, asked.run(directory=folder / level)
    for _, run in found.values():
        run.wait()
    return found


def test_skipped_steps_train_as_nobody_watches_too(runs):
    """The other levels, which a prediction knows whole, are in the table of parity/."""
    asked, run = runs["fp16-no-masters"]
    assert tensors_differ(run.result, asked.reference(), 0.0) == []


def test_state_is_16_bytes_a_weight_with_masters_and_without_mixed_precision(runs):
    """2 + 4 + 4 + 8 = 18 while the gradient is float32 (14 to keep, 12 in float32), less what the
    norms' float32 saves; 8 for all in half."""
    levels = {level: Precision(level=level, **TINY) for level in ("fp32", "bf16", "fp16-pure")}
    norms = 2 * 32 * (2 * 1 + 1)  # weight and bias of a block's two norms, and of the head's
    config = levels["fp32"].config
    low = (
        theory.gpt_weights(replace(config, tied=True))
        + (2 * config.width + 1) * config.classes  # a head in place of the output layer
        - norms
    )
    assert low + norms == parameters(config)
    steps = 4 * sum(name not in ("loss", "F1") for name in runs["fp16"][1].result)  # Adam's counts
    assert levels["fp32"].state_bytes == 16 * (low + norms) + steps
    assert levels["bf16"].state_bytes == 18 * low + 16 * norms + steps
    assert levels["fp16-pure"].state_bytes == 8 * (low + norms) + steps
    assert [rival(each, "", {}, None).broken for each in levels.values()] == ["", "", "breaks"]
    asked, run = runs["fp16"]
    assert checkpoint_bytes(run.trace("modelled")) == sum(
        asked.bytes[kind] for kind in ("weights", "master", "optimizer")
    )


def test_the_forward_saves_less_in_half():
    saved = {level: Precision(level=level, **TINY).bytes["activations"] for level in LEVELS}
    assert saved["fp16-pure"] * 2 - saved["fp32"] == 4 * 8  # whole numbers of the rows
    assert saved["fp32"] / 2 < saved["bf16"] == saved["fp16"] < saved["fp32"]


def test_gradients_are_counted_where_they_are_asked_for(runs):
    """At steps 0 and 2, of each weight, and of the output of each Linear, block, embedding and
    head."""
    asked, run = runs["fp16"]
    found = list(run.trace("modelled").where(Histogram))
    names = [event.name for event in found]
    weights = [name for name in run.result if name not in ("loss", "F1")]
    assert names.count("weight gradient layers.1.mlp.up.weight") == 2
    assert sum(name.startswith("weight gradient") for name in names) == 2 * len(weights)
    assert sum(name.startswith("activation gradient") for name in names) == 2 * (3 + 5)
    whole = Exponents.of(next(e for e in found if e.name == "activation gradient layers.1.mlp.up"))
    assert whole.nonzero + whole.zeros + whole.not_finite == 4 * 40 * 4 * 32


def test_half_is_modelled_faster_and_masters_cost_time():
    rates = {level: training_rate(Precision(level=level, **TINY).predict()) for level in LEVELS}
    assert rates["bf16"] < rates["bf16-no-masters"]
    assert rates["fp16"] < rates["fp16-no-scaling"] == rates["bf16"]
    large = {"layers": 12, "width": 768, "heads": 12, "rows": 256, "steps": 1}
    fp32, bf16 = (
        training_rate(Precision(level=level, **large).predict()) for level in ("fp32", "bf16")
    )
    assert 4 < bf16 / fp32 < 16  # an A100's float32 without TF32 against its bf16


# The table and the picture of the field


def test_the_field_holds_each_levels_both_clocks(runs):
    traces = [run.trace(clock) for _, run in runs.values() for clock in ("modelled", "measured")]
    rows = {row.name: row for row in field(traces)}
    assert list(rows) == list(runs)
    assert rows["fp32"].training == {
        clock: training_rate(runs["fp32"][1].trace(clock)) for clock in ("modelled", "measured")
    }
    assert rows["fp16"].checkpoint_bytes > rows["fp32"].checkpoint_bytes
    assert rows["fp16-no-masters"].skipped > 0 and len(rows["fp32"].losses) == 3


def test_levels_are_drawn_with_a_cross_where_a_loss_is_no_number(runs):
    drawn = figure("levels", [run.trace("modelled") for _, run in runs.values()])
    assert [each.name for each in drawn.data if each.type == "scatter" and each.name] == list(runs)
    assert {
        level
        for each in drawn.layout.annotations
        for level in re.findall(r"✕ <b>([\w-]+)</b>", each.text)
    } == {"fp16-no-masters"}
    predicted = figure("levels", [asked.predict() for asked, _ in runs.values()])
    assert {each.type for each in predicted.data} == {"bar"}  # no curves
    with pytest.raises(Impossible, match="tells no level of precision"):
        figure("levels", replace(runs["fp32"][0].predict(), settings={}))
