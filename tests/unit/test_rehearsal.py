"""What a schedule holds, of stages by hand whose sizes tell the kinds apart, and what is rehearsed
of it."""

import pytest

from bigtrain_lab.core import MEMORY_KINDS
from bigtrain_lab.order.schedule import Schedule
from bigtrain_lab.train.rehearsal import HALVES, WHOLE, rehearsals
from tests.unit.sizes import Sizes, traced


@pytest.mark.parametrize("m", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_peaks_by_kind(p, m):
    for name, live in (
        ("gpipe", lambda r: m),
        ("naive", lambda r: m),
        ("1f1b", lambda r: min(m, p - r)),
    ):
        trace = traced(Schedule.named(name)(p, m))
        for r in range(p):
            peaks = {
                k: trace.peak_bytes(r, k)
                for k in ("weights", "stashed", "gradients", "optimizer", "activations")
            }
            assert peaks == {
                "weights": 1000,
                "stashed": 0,
                "gradients": 100,
                "optimizer": 10,
                "activations": live(r),
            }
            # In the second step, with the optimizer's state there: naive's one backward frees all
            # activations as its gradients appear; a first B frees one; under 1F1B a forward may
            # follow while the gradients are there.
            at_once = {"naive": max(m, 100), "gpipe": 99 + m, "1f1b": 99 + live(r) + (m > live(r))}[
                name
            ]
            assert trace.peak_bytes(r) == 1000 + 10 + at_once


@pytest.mark.parametrize("name", Schedule.all())
def test_everything_but_weights_and_state_is_gone_at_the_end(name):
    order = Schedule.named(name)(3, 6)
    trace, chunks = traced(order), order.stages // 3
    left = dict.fromkeys(MEMORY_KINDS, 0) | {"weights": 1000 * chunks, "optimizer": 10 * chunks}
    for r in range(3):
        assert {k: trace.levels(r, k)[-1][1] for k in MEMORY_KINDS} == left


def test_a_micro_batch_whole_and_one_halved_on_a_rank_of_two_stages_event_by_event():
    """I makes 30 of the 100 bytes of gradients, the whole backward the rest; a pair that takes what
    it frees changes nothing."""
    order = Schedule.of("0F0 0F1 1F0 1I0+1F1 1B1 0B0 0I1 1W0 0W1")
    trace = traced(order, 1, Sizes(optimizer=0, queued=5, early=30))
    assert [(e.name, e.kind, e.bytes) for e in trace.events if hasattr(e, "inside")] == [
        ("start", "weights", 2000),
        *((f, "activations", n) for f, n in (("0F0", 1), ("0F1", 2), ("1F0", 3))),
        ("1I0+1F1", "gradients", 30),
        ("1I0+1F1", "queued", 5),
        ("1B1", "gradients", 100),
        ("1B1", "activations", 2),
        ("0B0", "gradients", 200),
        ("0B0", "activations", 1),
        ("0I1", "activations", 0),
        ("0I1", "queued", 10),
        ("1W0", "queued", 5),
        ("0W1", "queued", 0),
        ("0U1", "gradients", 100),
        ("1U1", "gradients", 0),
    ]


@pytest.mark.parametrize("name", Schedule.all())
def test_a_few_micro_batches_show_all_that_a_run_does(name):
    """Whatever the schedule, and without a search where no weights are late."""
    for p, m, steps in ((4, 8, 2), (4, 32, 3), (1, 1, 2)):
        chosen = rehearsals(Schedule.named(name)(p, m), steps)
        assert max(sum(one.micro_batches for one in several) for several in chosen) <= 6
        assert Schedule.named(name).asynchronous or {
            one for several in chosen for one in several
        } <= {WHOLE, HALVES}
