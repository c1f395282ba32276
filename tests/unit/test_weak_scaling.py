"""Megatron's weak scaling by the V100 profile: within 5 points of the paper, from its models' FLOPs
and all-reduces."""

import pytest

from benchmarks.weak_scaling import (
    PUBLISHED,
    PUBLISHED_ALONE_TFLOPS,
    REPLICAS,
    ROWS,
    SEQUENCE,
    SIZES,
    VOCABULARY,
    assumed,
    config,
    dry,
    efficiency,
    priced,
    step,
)
from bigtrain_lab.core.hardware import TAGS


def test_the_bars_are_within_five_points_and_depend_on_overlap():
    found = {8: efficiency(8), 512: efficiency(8, REPLICAS)}
    assert found == pytest.approx({8: 79.96, 512: 76.34}, abs=0.01)
    assert all(abs(found[gpus] - published) < 5 for gpus, published in PUBLISHED.items())
    assert efficiency(8, REPLICAS, overlap=False) == pytest.approx(
        66.27, abs=0.01
    )  # a miss, and told as one
    assert efficiency(1) == 100 and [efficiency(slices) for slices in SIZES] == sorted(
        map(efficiency, SIZES), reverse=True
    )
    assert (
        priced(1)[0] / step(1) / 1e12 == pytest.approx(47.34, abs=0.01)
        and PUBLISHED_ALONE_TFLOPS == 39
    )  # the ratio is closer than the rate


@pytest.mark.parametrize("slices", SIZES)
def test_flops_and_all_reduces_are_the_paper_s(slices):
    """Three times the forward of the tables' product, four times that of a block; six all-reduces a
    block."""
    (width, layers), tokens = SIZES[slices], ROWS * SEQUENCE
    block, head = (
        24 * tokens * width**2 + 4 * tokens * SEQUENCE * width,
        2 * tokens * width * VOCABULARY,
    )
    assert priced(slices)[0] == (4 * layers * block + 3 * head) / slices
    part = dry(config(slices), 1, slices, "fp16-pure")
    calls = [call for kind in "FB" for call in part.usual(kind).called]
    assert [call.bytes for call in calls] == [2 * tokens * width] * (6 if slices > 1 else 0)


def test_no_bar_is_assumed():
    told = assumed()
    assert {each.tag for each in told} <= TAGS.keys() and all(each.source for each in told)
    assert not {*PUBLISHED.values(), PUBLISHED_ALONE_TFLOPS} & {each.value for each in told}
