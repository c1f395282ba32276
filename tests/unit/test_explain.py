"""Why ranks wait, in sentences: each wait is counted with those it is named with, and all of them
are told."""

import re

import pytest

from bigtrain_lab import Schedule, simulate
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.order.explain import SLOTS, bubbles


def told(name, ranks=4, micro_batches=8):
    schedule = Schedule.named(name)(ranks, micro_batches)
    trace = simulate(schedule, SLOTS)
    return trace, bubbles(trace, schedule)


@pytest.mark.parametrize("name", [name for name in Schedule.all() if not name.startswith("zb")])
def test_the_slots_that_are_told_are_all_that_a_rank_idles(name):
    """Zero-bubble orders wait for nothing but a first input or gradient; there a wait may end in a
    W that it does not explain."""
    trace, sentences = told(name)
    for rank in range(4):
        own = [s for s in sentences if s.startswith(f"Rank {rank} ")]
        assert sum(map(idle_slots, own)) == trace.idle(rank), own


@pytest.mark.parametrize("hardware, verb", [("unit", "idles 6"), ("v100-nvlink", "idles or waits")])
def test_a_rank_waits_only_where_messages_take_time(hardware, verb):
    """By the definition of Trace.shares: idle is what no message covers."""
    lab = PipelineExperiment(hardware=hardware)
    assert lab.explain(lab.predict())[0].startswith(f"Rank 0 {verb} ")


def idle_slots(sentence: str) -> float:
    """The slots of a sentence: of the longest wait alone, or of all such gaps, and of the
    others."""
    longest, *sums = map(float, re.findall(r"([\d.]+) slots?", sentence))
    return sum(sums) if "such gaps" in sentence else longest + sum(sums)


@pytest.mark.parametrize(
    "name, words",
    [
        ("1f1b", ("27.3%", "more micro-batches", "share smaller")),
        ("pipedream", ("27.3%", "a longer run", "share smaller")),
        ("naive", ("75.0%", "one rank works at a time", "however many micro-batches")),
    ],
)
def test_what_the_whole_promises_holds(name, words):
    """More micro-batches, or a longer run, make the share smaller, or leave it where that was
    said."""
    (few, said), (many, _) = (told(name, micro_batches=m) for m in (8, 16))
    assert [each for each in words if each not in said[-1]] == []
    assert many.bubble() == few.bubble() if name == "naive" else many.bubble() < few.bubble()


def test_an_order_that_is_written_down_is_promised_nothing():
    schedule = Schedule.of("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    said = bubbles(simulate(schedule, SLOTS), schedule)[-1]
    assert "idle" in said and "micro-batches" not in said


def test_what_no_number_of_micro_batches_mends_is_told():
    """A stage twice as long as the three others: 1 - 5/8 of the rank-time is idle in the limit."""

    def at(m):
        schedule = Schedule.named("1f1b")(4, m)
        trace = simulate(schedule, {"F": [1, 1, 1, 2], "B": [2, 2, 2, 4], "U": 0})
        return trace.bubble(), bubbles(trace, schedule)[-1]

    assert all(
        words in at(8)[1]
        for words in ("Rank 3 has the most work", "37.5%", "however many micro-batches")
    )
    assert 0.375 < at(128)[0] < 0.39 < at(8)[0]
