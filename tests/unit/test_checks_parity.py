"""The instruments of comparison: two sets of tensors, also of trainings that diverged, and two
clocks."""

import re

import numpy as np
import pytest

from bigtrain_lab.checks import clocks_differ, tensors_differ
from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.core import Memory, Span, Trace

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
        ([1e-14], [0.0], "w is off by 1.00e-14, allowed 1e-12"),  # what should be zero is zero
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
def test_a_place_where_one_alone_is_no_number_or_zero_is_told(found, expected, said):
    assert tensors_differ({"w": np.array(found)}, {"w": np.array(expected)}) == [said]


def test_a_nan_elsewhere_hides_no_difference():
    """The norm of all tensors is that of the numbers in them."""
    diverged, close = np.array([NAN, 1.0]), 1 + 1e-9
    assert tensors_differ(
        {"loss": diverged, "w": np.array([close])}, {"loss": diverged, "w": np.ones(1)}
    ) == ["w is off by 1.00e-09, allowed 1e-12"]
    assert relative_errors({"w": diverged}, {"w": diverged, "v": np.ones(1)}) == {"w": 0.0}


TOLD = {
    "noise beside the whole gradient": ({"w": [1.0] * 4, "tiny": [0.0] * 2}, ""),
    "a factor": (
        {"w": [4.0] * 4, "tiny": [1e-20] * 2},
        "w is off by .*: exactly 4 times the right",
    ),
    "twice what is allowed": ({"w": [1 + 2e-12] * 4, "tiny": [1e-20] * 2}, "w is off by 2"),
    "missing": ({"w": [1.0] * 4}, "tiny is missing"),
    "of another shape": ({"w": [1.0] * 3, "tiny": [1e-20] * 2}, "w has shape"),
    "too many": ({"w": [1.0] * 4, "tiny": [1e-20] * 2, "v": [1.0]}, "v should not be there"),
}


@pytest.mark.parametrize("name", TOLD)
def test_differences_are_told(name):
    found, said = TOLD[name]
    expected = {"w": np.ones(4), "tiny": np.full(2, 1e-20)}
    told = tensors_differ({key: np.array(values) for key, values in found.items()}, expected)
    assert re.match(said, told[0]) and len(told) == 1 if said else told == []


SPAN, HELD = Span(0, "compute", "F", "0F0", 0, 5, 0), Memory(0, "compute", "weights", "start", 0, 8)


@pytest.mark.parametrize(
    "changed",
    [
        [HELD],
        [SPAN, HELD],
        [HELD, SPAN._replace(end=6)],
        [HELD, SPAN._replace(version=1)],
        [HELD._replace(bytes=9), SPAN],
        [HELD, SPAN, SPAN._replace(rank=1)],
    ],
)
def test_clocks_are_compared_event_for_event(changed):
    predicted = Trace.of([HELD, SPAN], "predicted")
    assert clocks_differ(predicted, Trace.of([HELD, SPAN], "modelled")) == []
    assert len(clocks_differ(predicted, Trace.of(changed, "modelled"))) == 1
