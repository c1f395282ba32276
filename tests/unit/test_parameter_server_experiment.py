"""The experiment parameter-server: what a straggler costs by each mode."""

import pytest

from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.experiments.parameter_server import ParameterServing
from bigtrain_lab.order.explain import NOT_FINITE, not_finite

MODES = "synchronous", "bounded", "asynchronous"


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
