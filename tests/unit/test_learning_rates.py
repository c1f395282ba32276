"""Schedules in closed form."""

import math

import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.techniques.learning_rates import (
    constant,
    linear_scaling,
    noam,
    polynomial_decay,
    square_root_scaling,
    warm_up,
)


def test_noam_gives_the_published_rate():
    assert f"{noam(512, 4000, 0.5)(1845):.3e}" == "1.612e-04"
    rates = [noam(512, 4000)(update) for update in range(1, 20_000)]
    assert max(rates) == rates[3999] == pytest.approx((512 * 4000) ** -0.5)
    assert rates[15_999] == pytest.approx(rates[3999] / 2) and rates[1999] == pytest.approx(
        rates[3999] / 2
    )


def test_warm_up_is_linear_and_hands_on():
    rate = warm_up(0.4, 4, polynomial_decay(0.4, 10, power=2))
    assert [rate(update) for update in range(1, 5)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [rate(4 + update) for update in range(1, 13)] == pytest.approx(
        [0.4 * max(0, 1 - t / 10) ** 2 for t in range(1, 13)]
    )
    assert warm_up(0.4, 4)(1000) == constant(0.4)(1) == 0.4


def test_polynomial_decay_ends_where_it_is_told():
    rate = polynomial_decay(1.0, 8, power=0.5, end=0.25)
    assert [rate(t) for t in (2, 6, 8, 9, 100)] == pytest.approx(
        [0.25 + 0.75 * 0.75**0.5, 0.625, 0.25, 0.25, 0.25]
    )


def test_scalings():
    assert linear_scaling(0.1, 8192, 256) == pytest.approx(3.2) and square_root_scaling(
        0.1, 1024, 256
    ) == pytest.approx(0.2)
    noise = torch.randn(64, 100_000, generator=torch.Generator().manual_seed(0))
    variances = [
        float((square_root_scaling(0.1, size, 4) * noise[:size].mean(0)).var()) for size in (4, 64)
    ]
    assert variances[1] == pytest.approx(variances[0], rel=0.02)  # what the rule is said to keep


@pytest.mark.parametrize(
    "make",
    [
        lambda: noam(0, 4000),
        lambda: warm_up(0.1, 0),
        lambda: polynomial_decay(0.1, math.inf),
        lambda: linear_scaling(0.1, 8, 0),
        lambda: square_root_scaling(-0.1, 8, 8),
        lambda: noam("512", 4),
        lambda: noam(512, 4)(0),
    ],
)
def test_numbers_of_which_no_rate_can_be_made(make):
    with pytest.raises(Impossible, match="give a number above 0"):
        make()
