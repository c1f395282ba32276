"""The comparison of two sets of tensors: a training that diverged equals one that diverged alike,
and else the place is told, without a warning."""

import numpy as np
import pytest

from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.checks.parity import relative_errors

NAN, INF = np.nan, np.inf
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("values", [[NAN, 1.0], [NAN, NAN], [INF, -INF, 1.0], NAN])
def test_what_is_no_number_in_both_is_equal(values):
    assert (
        tensors_differ(
            {"w": np.array(values), "v": np.ones(2)}, {"w": np.array(values), "v": np.ones(2)}
        )
        == []
    )
    assert tensors_differ({"w": np.array(values)}, {"w": np.array(values)}) == []


@pytest.mark.parametrize(
    "found, expected, said",
    [
        ([[1.0, NAN], [1.0, 1.0]], [[1.0, 0.5], [1.0, 1.0]], "w is nan at [0, 1], expected 0.5"),
        ([0.5, 1.0], [NAN, 1.0], "w is 0.5 at [0], expected nan"),
        ([NAN, 1.0], [1.0, NAN], "w is nan at [0], expected 1, and so in 2 places"),
        ([INF, 1.0], [-INF, 1.0], "w is inf at [0], expected -inf"),
        ([INF, 1.0], [NAN, 1.0], "w is inf at [0], expected nan"),
        (NAN, 0.25, "w is nan, expected 0.25"),
        (
            [NAN, 2.0],
            [NAN, 1.0],
            "w is off by 1.00e+00, allowed 1e-12: exactly 2 times the right value",
        ),
        (
            [INF, 2.0],
            [INF, 1.0],
            "w is off by 1.00e+00, allowed 1e-12: exactly 2 times the right value",
        ),
    ],
)
def test_a_place_where_one_alone_is_no_number_is_told(found, expected, said):
    assert tensors_differ({"w": np.array(found)}, {"w": np.array(expected)}) == [said]


def test_a_nan_elsewhere_hides_no_difference():
    """The norm of all tensors is that of the numbers in them."""
    diverged, close = np.array([NAN, 1.0]), 1 + 1e-9
    assert tensors_differ(
        {"loss": diverged, "w": np.array([close])}, {"loss": diverged, "w": np.ones(1)}
    ) == ["w is off by 1.00e-09, allowed 1e-12"]
    assert relative_errors({"w": diverged}, {"w": diverged, "v": np.ones(1)}) == {"w": 0.0}
