"""The staleness experiment: its delays, and the bound on the rate."""

import pytest

from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments.staleness import Staleness, largest_stable_rate


def test_without_stashing_the_gradient_is_another():
    assert max(Staleness(stashing=False, steps=2).recipe.alone().gradient_errors) > 1e-3


@pytest.mark.parametrize(
    "schedule,delays",
    [
        ("1f1b", "0, 0, 0, 0"),
        ("pipedream", "3, 2, 1, 0"),
        ("pipedream-vertical-sync", "3, 3, 3, 3"),
        ("pipedream-2bw", "1, 1, 1, 1"),
    ],
)
def test_each_stage_s_delay(schedule, delays):
    assert Staleness(schedule=schedule).describe().endswith(delays)


def test_several_stages_a_rank_are_refused():
    with pytest.raises(Impossible, match="take another schedule"):
        Staleness(schedule="interleaved")


@pytest.mark.parametrize("delay,rate", [(0, 2), (1, 1), (2, 0.618), (3, 0.445), (12, 0.126)])
def test_the_largest_stable_rate_of_a_delay(delay, rate):
    """On w(t+1) = w(t) - rate * w(t - delay): just below it falls, just above it grows."""
    assert round(largest_stable_rate(delay), 3) == pytest.approx(rate, abs=1e-3)

    def size_after(factor, steps=6000):
        w = [1.0] * (delay + 1)
        for _ in range(steps):
            w.append(w[-1] - factor * largest_stable_rate(delay) * w[-1 - delay])
        return max(abs(x) for x in w[-50:])

    assert size_after(0.99) < 0.1 and size_after(1.01) > 10
