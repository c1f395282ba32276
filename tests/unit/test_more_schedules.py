"""Interleaving, zero bubbles, vertical sync and 2BW against the closed forms of their papers."""

from fractions import Fraction

import pytest

from bigtrain_lab.core import Cost
from bigtrain_lab.order.schedule import Action, Schedule, name_of
from bigtrain_lab.order.simulate import simulate
from tests.unit.sizes import traced

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
    assert max(trace.window(r) for r in range(p)) - m * (F + I + W) == (p - 1) * (F + I - 2 * W)
    assert [trace.peak_live(r) for r in range(p)] == [min(m, 2 * p - 1)] * p


# name -> (copies of its weights that rank r of p holds, version that micro-batch t uses there)
LATE = {
    "pipedream": (lambda p, r: p - r, lambda p, m, r, t: t - (p - 1 - r)),
    # 16 copies in all at p = 4, where stashing alone holds 10
    "pipedream-vertical-sync": (lambda p, r: p, lambda p, m, r, t: t - (p - 1)),
    "pipedream-2bw": (lambda p, r: 2, lambda p, m, r, t: t // m - 1),
}


@pytest.mark.parametrize(
    "name, p, m", [(name, p, m) for name in LATE for p, m in GRID if m >= p or "2bw" not in name]
)
def test_where_a_pipeline_never_drains_weights_are_late_and_so_many_copies_are_held(name, p, m):
    held, version = LATE[name]
    steps = max(4, -(-2 * p // m))  # long enough to fill
    trace = traced(Schedule.named(name)(p, m), steps)
    for r in range(p):
        found = trace.versions(r)
        for t in range(steps * m):
            assert found[f"{r}F{t}"] == found[f"{r}B{t}"] == max(0, version(p, m, r, t))
        assert 1 + trace.peak_bytes(r, "stashed") // 1000 == held(p, r)
    assert trace.makespan == (steps * m + p - 1) * 3  # one fill and one drain


def test_a_backward_needs_the_next_stage_s_whole_or_halved_as_the_order_has_it():
    needs = Schedule.of("0F0 0F1 0B0 0I1 0W1", "1F0 1F1 1I0 1W0 1B1").needs
    assert [
        needs(Action(*kind, m))
        for kind, m in ((("B", 0), 0), (("I", 0), 1), (("I", 1), 0), (("W", 1), 0))
    ] == [
        [Action("F", 0, 0), Action("I", 1, 0)],
        [Action("F", 0, 1), Action("B", 1, 1)],
        [Action("F", 1, 0)],
        [Action("I", 1, 0)],
    ]
    assert needs(Action("U", 0, 1)) == [Action("B", 0, 0), Action("W", 0, 1)]
    assert Schedule.named("zb-h1")(2, 1).needs(Action("I", 0, 0)) == [
        Action("F", 0, 0),
        Action("I", 1, 0),
    ]


# -- in a V, and breadth first ---------------------------------------------------------------------

SLOTS = {"F": 1, "I": 1, "W": 1, "B": 2}


def longest_wait(trace, work):
    """What the longest window has more than the work of a rank."""
    return max(trace.window(r) for r in range(trace.ranks)) - work


@pytest.mark.parametrize("p,m", [(p, m) for p in P for m in (2 * p - 1, 2 * p, 16)])
def test_zb_v_idles_only_outside_its_windows_and_holds_as_much_as_1f1b(p, m):
    trace = simulate(Schedule.named("zb-v")(p, m), SLOTS)
    assert [trace.idle(r) for r in range(p)] == [p - 1] * p
    assert longest_wait(trace, 6 * m) == 0
    assert [trace.peak_live(r) for r in range(p)] == [2 * p] * p  # chunks of half a stage


@pytest.mark.parametrize("p,idle", [(2, 1), (3, 5), (4, 5), (5, 11), (6, 11), (7, 17), (8, 17)])
@pytest.mark.parametrize("more", [0, 1, 9])
def test_v_half_is_as_fast_as_the_authors_program_within_their_memory(p, idle, more):
    """`idle`: what the order of their scheduler has for F = I = W, run with the same rules; m = 2p
    and more."""
    m = 2 * p + more
    trace = simulate(Schedule.named("v-half")(p, m), SLOTS)
    assert (
        longest_wait(trace, 6 * m) == trace.makespan - 6 * m == idle <= 3 * p
    )  # 3p slots of 6m: their p/(2m)
    assert [trace.peak_live(r) for r in range(p)] == [2 * ((p + 2) // 2)] * p


@pytest.mark.parametrize("pair", [3, Fraction(7, 2), 4])
@pytest.mark.parametrize("p,m", [(p, m) for p in P for m in (2 * p, 2 * p + 1, 3 * p + 2)])
def test_dualpipe_v_has_the_bubble_and_the_memory_of_its_authors(p, m, pair):
    trace = simulate(Schedule.named("dualpipe-v")(p, m), SLOTS | {"F+B": pair})
    assert longest_wait(trace, max(trace.busy(r) for r in range(p))) == (p - 1) * (
        pair + 2 - 3
    )  # PP/2 = p
    assert max(trace.peak_live(r) for r in range(p)) == 2 * p + 1  # PP + 1


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize("p,m", GRID)
def test_looped_bfs_is_gpipe_over_chunks(p, m, v):
    trace = simulate(Schedule.named("looped-bfs")(p, m, v), {"F": 1, "B": 2})
    assert [trace.idle(r) for r in range(p)] == [3 * (p - 1 + (v - 1) * max(0, p - m))] * p
    assert [trace.peak_live(r) for r in range(p)] == [m * v] * p


@pytest.mark.parametrize(
    "name,theirs",
    [
        ("zb-v", "ScheduleZBVZeroBubble"),
        ("dualpipe-v", "ScheduleDualPipeV"),
        ("looped-bfs", "ScheduleLoopedBFS"),
    ],
)
@pytest.mark.parametrize("p,m", [(1, 2), (2, 4), (3, 7), (4, 8), (4, 16)])
def test_torch_executes_the_same_order(name, theirs, p, m):
    """Its schedules compute their order when stages are there, so the method is called without."""
    from torch.distributed.pipelining import schedules

    schedule = object.__new__(getattr(schedules, theirs))
    vars(schedule).update(
        pp_group_size=p, _n_microbatches=m, _stages=[None] * 2, num_stages=2 * p, _num_stages=2 * p
    )
    for rank, steps in enumerate(Schedule.named(name)(p, m).over(1)):
        found = [
            "+".join(map(str, a.sub_actions or [a]))
            for a in schedule._calculate_single_rank_operations(rank)
            if a
        ]
        assert found == [name_of(step) for step in steps if step[0].kind != "U"]
