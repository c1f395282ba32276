"""The experiment parameter-server: on real ranks as predicted, with the weights of one process."""

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.experiments.parameter_server import ParameterServing
from bigtrain_lab.order.explain import NOT_FINITE, not_finite
from bigtrain_lab.view.figures import figure

from .test_group import lanes_of

MODES = "synchronous", "bounded", "asynchronous"
SMALL = {"dtype": "float64", "rows": 4, "width": 8, "workers": 3, "steps": 4}


@pytest.mark.parametrize(
    "asked, runs",
    [
        ({"servers": 2, "hiccups": 0.3, "slow": 3, "hardware": "rtx3090-pcie"}, 2),
        (
            {
                "mode": "bounded",
                "bound": 1,
                "servers": 3,
                "hiccups": 0.4,
                "hiccup": 20,
                "slow": 1.5,
            },
            1,
        ),
        (
            {
                "mode": "synchronous",
                "servers": 2,
                "slow": 2,
                "fault": "straggler",
                "fault_rank": 0,
                "fault_factor": 5,
            },
            1,
        ),
    ],
    ids=["asynchronous", "bounded", "synchronous"],
)
def test_servers_and_stragglers_are_as_predicted_and_as_one_process(asked, runs, tmp_path):
    """Event for event, byte for byte, to 1e-12 on every rank; a second run has the same trace,
    though ranks sleep at random."""
    lab = ParameterServing(**SMALL, **asked)
    traces = []
    for number in range(runs):
        run = lab.run(directory=tmp_path / str(number), jitter_s=0.002)
        traces.append(run.wait())
        assert run_differs(lab, run) == []
        for server in range(lab.servers):  # what the servers counted is what the trace tells
            rank = lab.workers + server
            counted = run.results[rank][f"staleness of server {server}"].tolist()
            found = [each for each in lab.applied(run.trace("measured")) if each.server == rank]
            assert counted == [each.staleness for each in found] and len(found) == sum(lab.requests)
            assert any(counted) == (lab.mode != "synchronous")
            assert lab.mode != "bounded" or max(counted) <= (2 * lab.bound + 1) * (lab.workers - 1)
    assert len({str(lanes_of(trace)) for trace in traces}) == 1
    assert len({lab.requests}) == 1 and min(lab.requests) == lab.steps
    drawn = figure("staleness", traces[0])
    assert sum(sum(bar.y) for bar in drawn.data if bar.type == "bar") == pytest.approx(1)
    assert (
        "xaxis2" in drawn.layout and "xaxis2" not in figure("staleness", lab.predict()).layout
    )  # no losses, no empty half
    quality = {q.name: q.of(traces[0]) for q in lab.quantities}
    assert None not in quality.values() and 0 < quality["test accuracy, last"] < 100


def test_what_a_straggler_costs():
    """Slow for good: a bound waits as the round does. Hiccups of as much time: it does not."""

    def rate(mode, **asked):
        lab = ParameterServing(mode=mode, steps=100, **asked)
        table = {q.name: q.of(lab.predict()) for q in lab.quantities}
        return (
            table["gradients applied a slot"],
            table["staleness, worst"],
            table["bytes through the busiest server's port, in and out"],
        )

    assert rate("synchronous")[:2] == (1.0, 0) and rate("asynchronous")[:2] == (3.25, 12)
    assert rate("bounded")[:2] == (1.0225, 12)
    synchronous, bounded, asynchronous = (rate(mode, slow=1, hiccups=0.25)[0] for mode in MODES)
    assert synchronous < 1.5 and bounded > 2 and asynchronous > bounded
    one, two = (rate("synchronous", servers=servers)[2] for servers in (1, 2))
    assert two < 0.6 * one and one == 100 * 4 * 2 * ParameterServing().server_bytes[0]


@pytest.mark.parametrize(
    "asked, told",
    [
        ({"workers": 0}, "workers is 0: it must be a whole number from 1 to 6"),
        ({"bound": -1}, "bound is -1: it must be a whole number"),
        ({"mode": "x"}, "mode is 'x': choose one of synchronous"),
        ({"steps": 500, "slow": 16, "workers": 6}, "take fewer steps, a smaller slow, or a bound"),
        ({"fault": "nan", "fault_rank": 7}, "there are ranks 0 to 4"),
        ({"fault": "kill", "fault_rank": 0, "fault_at": 500}, "which has actions 0 to 159"),
    ],
)
def test_what_cannot_be_is_one_sentence(asked, told):
    with pytest.raises(Impossible, match=told):
        ParameterServing(**asked)


def test_a_message_is_told_before_the_loss_that_it_spoils_at_once():
    """Links are free and updates take no time: both bear one time."""
    found = [
        Scalar(rank, "compute", NOT_FINITE, name, 5, float("nan"))
        for rank, name in ((0, "loss in 0F2"), (4, "server 0 answers 0.1"))
    ]
    assert "it began on rank 4; rank 4 sent" in not_finite(Trace.of(found, "modelled", ranks=5))[0]


def test_other_traces_have_no_staleness():
    from bigtrain_lab.experiments.staleness import Staleness

    with pytest.raises(Impossible, match="take one of the experiment parameter-server"):
        figure("staleness", Staleness(steps=1).predict())
