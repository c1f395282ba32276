"""Published numbers that the library's prices foretell: Megatron's weak scaling by the V100 profile,
within 5 points; the translator's epoch on three ranks from that on one, within a tenth."""

from dataclasses import replace

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
from bigtrain_lab.models import TranslatorConfig, epoch as one_epoch


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


@pytest.mark.parametrize(
    "assumed, published",
    [
        (assumed, {*PUBLISHED.values(), PUBLISHED_ALONE_TFLOPS}),
        (one_epoch.assumed, {one_epoch.PUBLISHED_ON_THREE_S}),
    ],
)
def test_nothing_published_is_assumed(assumed, published):
    told = assumed()
    assert {each.tag for each in told} <= TAGS.keys() and all(each.source for each in told)
    assert not published & {each.value for each in told}


# -- the epoch -------------------------------------------------------------------------------------


def test_three_ranks_take_what_was_published_within_a_tenth():
    for epoch in (
        one_epoch.PUBLISHED,
        *(one_epoch.PUBLISHED._replace(tokens=tokens) for tokens in (20, 100)),
        one_epoch.PUBLISHED._replace(training=1.0),
    ):
        assert one_epoch.on_ranks(3, epoch) == pytest.approx(
            one_epoch.PUBLISHED_ON_THREE_S, rel=0.1
        )
    assert one_epoch.on_ranks(1) == pytest.approx(one_epoch.PUBLISHED.seconds)


def test_a_step_is_exposed_to_the_source_table_alone():
    """Kernels as fast beside the all-reduce, on a link that keeps up: the last gradient is that of
    the source's words."""
    fast = replace(one_epoch.RTX3090, overlap_slowdown=1.0)
    table_s = 4 / 3 * 4 * 32_000 * 512 / 12e9 + 4 * 5e-6
    assert one_epoch.step(3, 0.120, one_epoch.PUBLISHED, fast, TranslatorConfig()) == pytest.approx(
        0.120 + table_s, rel=0.03
    )
