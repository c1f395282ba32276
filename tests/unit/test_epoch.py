"""The translator's epoch on three ranks from that on one: within 10% of the published run, whatever
is assumed."""

from dataclasses import replace

import pytest

from bigtrain_lab.core.hardware import TAGS
from bigtrain_lab.models import TranslatorConfig
from bigtrain_lab.models.epoch import (
    PUBLISHED,
    PUBLISHED_ON_THREE_S,
    RTX3090,
    assumed,
    on_ranks,
    step,
)


def test_three_ranks_take_what_was_published_within_a_tenth():
    for epoch in (
        PUBLISHED,
        *(PUBLISHED._replace(tokens=tokens) for tokens in (20, 100)),
        PUBLISHED._replace(training=1.0),
    ):
        assert on_ranks(3, epoch) == pytest.approx(PUBLISHED_ON_THREE_S, rel=0.1)
    assert on_ranks(1) == pytest.approx(PUBLISHED.seconds)


def test_the_seconds_on_three_ranks_are_not_assumed():
    told = assumed()
    assert PUBLISHED_ON_THREE_S not in [each.value for each in told]
    assert {each.tag for each in told} <= TAGS.keys() and all(each.source for each in told)


def test_a_step_is_exposed_to_the_source_table_alone():
    """Kernels as fast beside the all-reduce, on a link that keeps up: the last gradient is that of
    the source's words."""
    fast = replace(RTX3090, overlap_slowdown=1.0)
    table_s = 4 / 3 * 4 * 32_000 * 512 / 12e9 + 4 * 5e-6
    assert step(3, 0.120, PUBLISHED, fast, TranslatorConfig()) == pytest.approx(
        0.120 + table_s, rel=0.03
    )
