"""The experiment large-batch: a run is as predicted, its samples are the same whatever the batch,
and what it says of layers is so."""

import pytest
import torch

from bigtrain_lab.core import Impossible, Scalar
from bigtrain_lab.experiments.large_batch import LargeBatch
from bigtrain_lab.order.rates import ACCURACY, STEP, TRUST, of_layers
from bigtrain_lab.view.figures import figure

SMALL = {"batch": 64, "samples": 1024, "layers": 2, "width": 16, "dtype": "float64"}


def test_two_replicas_say_how_far_each_layer_went(tmp_path):
    """By LAMB each layer's step is the rate's share of its weights; the last updates are looked at,
    where not all are."""
    asked = LargeBatch(**SMALL, replicas=2, at_once=4, norm="batch")  # 8 micro-batches of a replica
    run = asked.run(directory=tmp_path / "run")
    trace = run.wait()
    steps, ratios = of_layers(trace, STEP), of_layers(trace, TRUST)
    assert [*steps] == [*ratios] == ["layers.0", "layers.1", "head"]
    for values in steps.values():
        assert values == pytest.approx([asked.rate(update) for update in range(1, 17)], rel=1e-9)
    assert len({tuple(values) for values in ratios.values()}) == 3
    assert len(trace.where(Scalar, name=ACCURACY)) == asked.steps == 16
    assert len(figure("trust", trace).frames) == 16


@pytest.mark.parametrize("task", ["digits", "text"])
def test_all_batches_are_of_the_same_samples_in_one_order(task):
    """Across the ends of passes too; and none of them is examined."""
    several = [
        LargeBatch(task=task, batch=batch, at_once=at_once, samples=4096, dtype="float64")
        for batch, at_once in ((32, 32), (2048, 64), (4096, 4096))
    ]
    streams = [
        torch.cat([lab.micro_batch(n)[0] for n in range(lab.steps * lab.micro_batches)])
        for lab in several
    ]
    assert (
        all(torch.equal(stream, streams[0]) for stream in streams[1:]) and len(streams[0]) == 4096
    )
    assert not torch.equal(streams[0][:1347], streams[0][1347:2694])
    if task == "digits":
        assert not (streams[0][:, None] == several[0].examined[0][None, :50]).all(-1).any()


def test_the_rate_grows_with_the_batch_by_the_rule_then_rises_and_falls():
    rates = {
        scaling: LargeBatch(batch=512, learning_rate=0.01, scaling=scaling).full_rate
        for scaling in ("none", "square-root", "linear")
    }
    assert rates == pytest.approx({"none": 0.01, "square-root": 0.04, "linear": 0.16})
    lab = LargeBatch(batch=512, samples=512 * 20, scaling="none", learning_rate=1.0, warm_up=0.2)
    assert [lab.rate(update) for update in (1, 2, 4, 5, 20)] == pytest.approx(
        [0.25, 0.5, 1, 16 / 17, 1 / 17]
    )
    assert 0 < LargeBatch(batch=1024, samples=1024).rate(1) < LargeBatch(batch=1024).full_rate


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"batch": 2048, "samples": 1024}, "take more samples, or a smaller batch"),
        ({"batch": 100, "replicas": 3}, "take powers of two"),
    ],
)
def test_what_cannot_be_is_refused(settings, told):
    with pytest.raises(Impossible, match=told):
        LargeBatch(**settings)


def test_figures_say_what_they_need():
    """A prediction knows its rates, and neither ratios nor what is learnt."""
    predicted = LargeBatch(**SMALL).predict()
    assert len(figure("trust", predicted).data) == 1
    with pytest.raises(Impossible):
        figure("learning", predicted)
