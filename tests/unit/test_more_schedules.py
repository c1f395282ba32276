"""Interleaving, zero bubbles, vertical sync and 2BW against the closed forms of their papers."""

from fractions import Fraction

import pytest

from bigtrain_lab.core import Cost, Impossible
from bigtrain_lab.footprint import StageBytes, footprint
from bigtrain_lab.schedule import Action, Schedule
from bigtrain_lab.simulate import simulate

P, M = (1, 2, 3, 4, 8), (1, 2, 4, 8, 16)
GRID = [(p, m) for p in P for m in M]
THIRDS = [(1, 1, 1), (3, 4, 2), (2, 3, 2)]


def chunked(p, m, v):
    cost = Cost({"F": Fraction(1, v), "B": Fraction(2, v)}, ticks_per_unit=1000 * v)
    return simulate(Schedule.named("interleaved")(p, m, v), cost)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("p,m", [(p, m) for p, m in GRID if m % p == 0])
def test_interleaving_divides_the_bubble_by_the_chunks(p, m, v):
    trace = chunked(p, m, v)
    assert [trace.idle(r) for r in range(p)] == pytest.approx([(p - 1) * 3 / v] * p, abs=1e-12)
    assert trace.bubble("window") == pytest.approx(trace.bubble(), abs=1e-12)
    if m > p:
        assert trace.peak_live(0) == p * v + p - 1


def test_lesson_11_numbers_of_interleaving_and_zero_bubbles():
    trace = chunked(4, 8, 2)
    assert (trace.makespan, f"{100 * trace.bubble():.1f}") == (28.5, "15.8")
    trace = simulate(Schedule.named("zb-h1")(4, 8), {"F": 1, "I": 1, "W": 1})
    assert (trace.makespan, f"{100 * trace.bubble():.1f}", [trace.peak_live(r) for r in range(4)]) == (27, "11.1", [4] * 4)
    trace = simulate(Schedule.named("zb-h2")(4, 8), {"F": 1, "I": 1, "W": 1})
    assert (trace.idle(0), trace.bubble("window"), [trace.peak_live(r) for r in range(4)]) == (3, 0, [7] * 4)


@pytest.mark.parametrize("m,choices", [(6, "4 or 8"), (2, "take 4")])
def test_interleaving_refuses_a_remainder_and_names_what_fits(m, choices):
    with pytest.raises(Impossible, match=choices):
        Schedule.named("interleaved")(4, m)
    with pytest.raises(Impossible, match="chunks is 0"):
        Schedule.named("interleaved")(4, 4, 0)


@pytest.mark.parametrize("F,I,W", THIRDS)
@pytest.mark.parametrize("p,m", GRID)
def test_zb_h1(p, m, F, I, W):  # noqa: E741
    trace = simulate(Schedule.named("zb-h1")(p, m), {"F": F, "I": I, "W": W})
    assert [trace.idle(r) for r in range(p)] == [(p - 1) * (F + I - W) + max(0, p - m) * W] * p
    assert [trace.peak_live(r) for r in range(p)] == [min(m, p)] * p


@pytest.mark.parametrize("F,I,W", THIRDS)
@pytest.mark.parametrize("p,m", [(p, m) for p, m in GRID if m >= 2 * p - 1])
def test_zb_h2(p, m, F, I, W):  # noqa: E741
    trace = simulate(Schedule.named("zb-h2")(p, m), {"F": F, "I": I, "W": W})
    longest = max(trace.window(r) for r in range(p))
    assert longest - m * (F + I + W) == (p - 1) * (F + I - 2 * W)
    assert [trace.peak_live(r) for r in range(p)] == [min(m, 2 * p - 1)] * p


def versions_and_copies(name, p, m, steps=3):
    schedule = Schedule.named(name)(p, m)
    changes, resident = footprint(schedule, [StageBytes(1000, 100, 10, 1)] * p, steps)
    trace = simulate(schedule, Cost({"F": 1, "B": 2}, changes=changes, resident=resident), steps)
    return trace, [1 + trace.peak_bytes(r, "stashed") // 1000 for r in range(p)]


@pytest.mark.parametrize("p,m", GRID)
def test_vertical_sync_uses_one_version_on_all_stages_and_p_copies(p, m):
    steps = -(-2 * p // m)  # long enough to fill
    trace, copies = versions_and_copies("pipedream-vertical-sync", p, m, steps)
    for r in range(p):
        for t in range(steps * m):
            assert trace.versions(r)[f"{r}F{t}"] == trace.versions(r)[f"{r}B{t}"] == max(0, t - p + 1)
    assert copies == [p] * p  # 16 at p = 4, where stashing alone holds 10


@pytest.mark.parametrize("p,m", [(p, m) for p, m in GRID if m >= p])
def test_2bw_delays_by_one_update_and_holds_two_copies(p, m):
    trace, copies = versions_and_copies("pipedream-2bw", p, m, steps=4)
    for r in range(p):
        for t in range(4 * m):
            assert trace.versions(r)[f"{r}F{t}"] == trace.versions(r)[f"{r}B{t}"] == max(0, t // m - 1)
    assert copies == [2] * p
    assert trace.makespan == (4 * m + p - 1) * 3  # one fill and one drain


def test_2bw_refuses_fewer_micro_batches_than_ranks():
    with pytest.raises(Impossible, match="take 4 micro-batches or 3 ranks"):
        Schedule.named("pipedream-2bw")(4, 3)


def test_the_halves_need_each_other():
    schedule = Schedule.named("zb-h1")(2, 1)
    assert schedule.needs(Action("I", 0, 0)) == [Action("F", 0, 0), Action("I", 1, 0)]
    assert schedule.needs(Action("W", 0, 0)) == [Action("I", 0, 0)]
