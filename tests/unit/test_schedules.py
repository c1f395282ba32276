"""The schedules against the closed forms of their papers, what they hold, and the refusals. Why ranks
wait, in sentences: each wait is counted with those it is named with, and all of them are told."""

import re
from fractions import Fraction

import pytest

from bigtrain_lab.core import MEMORY_KINDS, Cost, Impossible, Link
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.order.explain import bubbles
from bigtrain_lab.order.plan import Compute, Launch, Plan, Recv, Send, Wait
from bigtrain_lab.order.schedule import Action, B, F, Schedule, U, name_of
from bigtrain_lab.order.simulate import simulate
from bigtrain_lab.train.rehearsal import HALVES, WHOLE, rehearsals
from tests.unit.sizes import Sizes, traced


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
    assert lab.explain(lab.predict())[1].startswith(f"Rank 0 {verb} ")


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


# -- closed forms ----------------------------------------------------------------------------------

P, M = (1, 2, 3, 4, 8), (1, 2, 4, 8, 16)
GRID = [(p, m) for p in P for m in M]
COST = {"F": 1, "B": 2}


@pytest.mark.parametrize("p,m", GRID)
def test_1f1b_warms_up_then_alternates_then_drains(p, m):
    for r in range(p):
        ran = [
            str(action)
            for step in Schedule.named("1f1b")(p, m).steps(r)
            for action in step
            if action.kind in "FB"
        ]
        kinds = [a[len(str(r))] for a in ran]
        w = min(m, p - r - 1)
        assert kinds == ["F"] * w + ["F", "B"] * (m - w) + ["B"] * w
        for kind in "FB":
            assert [a for a in ran if kind in a] == [f"{r}{kind}{i}" for i in range(m)]


THIRDS = [(1, 1, 1), (3, 4, 2), (2, 3, 2)]


@pytest.mark.parametrize("p,m", GRID)
@pytest.mark.parametrize(
    "name, chunks, cost, idle, live",
    [
        ("gpipe", (), COST, lambda p, m: 3 * (p - 1), lambda p, m, r: m),
        ("1f1b", (), COST, lambda p, m: 3 * (p - 1), lambda p, m, r: min(m, p - r)),
        ("naive", (), COST, lambda p, m: 3 * m * (p - 1), lambda p, m, r: m),  # one rank at a time
        *(  # GPipe over chunks
            (
                "looped-bfs",
                (v,),
                COST,
                lambda p, m, v=v: 3 * (p - 1 + (v - 1) * max(0, p - m)),
                lambda p, m, r, v=v: m * v,
            )
            for v in (1, 2, 3)
        ),
        *(
            (
                "zb-h1",
                (),
                {"F": F, "I": I, "W": W},
                lambda p, m, wait=F + I - W, W=W: (p - 1) * wait + max(0, p - m) * W,
                lambda p, m, r: min(m, p),
            )
            for F, I, W in THIRDS  # noqa: E741
        ),
    ],
)
def test_what_ranks_idle_and_hold_where_a_pipeline_drains(name, chunks, cost, idle, live, p, m):
    """`idle`: slots that each rank idles; `live`: micro-batches alive on rank r, chunks each."""
    schedule = Schedule.named(name)(p, m, *chunks)
    trace = simulate(schedule, cost)
    assert trace.makespan == sum(cost.values()) * m * schedule.chunks + idle(p, m)
    assert [trace.idle(r) for r in range(p)] == [idle(p, m)] * p
    share = idle(p, m) / trace.makespan
    assert trace.bubble() == pytest.approx(share, abs=1e-15)
    if name in ("gpipe", "1f1b"):  # rank 0 spans it all
        assert trace.bubble("window") == pytest.approx(share, abs=1e-15)
    assert [trace.peak_live(r) for r in range(p)] == [live(p, m, r) for r in range(p)]


@pytest.mark.parametrize("p,m", GRID)
def test_pipedream_without_stashing_uses_the_newest_weights(p, m):
    newest = Schedule.named("pipedream")(p, m, stashing=False)
    for r in range(p):
        assert [newest.version(Action("B", r, t)) for t in range(m)] == list(range(m))


# -- chunks, zero bubbles, late weights ------------------------------------------------------------


@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("p,m", [(p, m) for p, m in GRID if m % p == 0])
def test_interleaving_divides_the_bubble_by_the_chunks(p, m, v):
    trace = simulate(
        Schedule.named("interleaved")(p, m, v),
        Cost({"F": Fraction(1, v), "B": Fraction(2, v)}, ticks_per_unit=1000 * v),
    )
    assert [trace.idle(r) for r in range(p)] == pytest.approx([(p - 1) * 3 / v] * p, abs=1e-12)
    assert trace.bubble("window") == pytest.approx(trace.bubble(), abs=1e-12)
    if m > p:
        assert trace.peak_live(0) == p * v + p - 1


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


# -- what the simulator does -----------------------------------------------------------------------


def test_the_window_measure_forgives_what_lies_outside_a_rank_s_own_window():
    """One slot on rank 0, then five on rank 1: half of all rank-time is idle, and no rank idles
    within its window."""
    first, second = Action("F", 0, 0), Action("F", 1, 0)
    plan = Plan(
        {
            (0, "compute"): (Compute((first,)), Send(1, first)),
            (1, "compute"): (Recv(0, first), Compute((second,))),
        },
        2,
    )
    trace = simulate(plan, {"F": (1, 5)})
    assert (trace.makespan, trace.window(0), trace.window(1)) == (6, 1, 5)
    assert trace.bubble() == 0.5 and trace.bubble("window") == 0


WRONG = {
    "empty": (lambda r: [], "Nothing runs: 0F0 is missing on rank 0"),
    "forgets": (
        lambda r: [F(r, 0), F(r, 1), B(r, 0)] + [B(r, 1)] * (r == 0),
        "1B1 is missing on rank 1",
    ),
    "repeats": (lambda r: [F(r, 0), F(r, 0), F(r, 1), B(r, 0), B(r, 1)], "Rank 0 runs 0F0 twice"),
    "elsewhere": (
        lambda r: [F(1 - r, 0), F(1 - r, 1), B(1 - r, 0), B(1 - r, 1)],
        "Rank 0 runs 1F0, but stage 1 lies on rank 1",
    ),
    "beyond": (lambda r: [F(r, 0), F(r, 1), F(r, 2), B(r, 0), B(r, 1)], "0F2, but there are only"),
    "backward first": (
        lambda r: [B(r, 0), F(r, 0), F(r, 1), B(r, 1)],
        "Rank 0 runs 0B0 before 0F0",
    ),
    "updates twice": (
        lambda r: [F(r, 0), F(r, 1), B(r, 0), U(r, 0), B(r, 1), U(r, 1)],
        "Rank 0 updates stage 0 2 times",
    ),
    "updates early": (
        lambda r: [F(r, 0), F(r, 1), B(r, 0), U(r, 1), B(r, 1)],
        "Rank 0 runs 0U1 before 0B1, whose gradient it applies",
    ),
    "unknown kind": (
        lambda r: [F(r, 0), F(r, 1), (Action("X", r, 0),), B(r, 0), B(r, 1)],
        "0X0, and there is no kind X",
    ),
    "fails": (lambda r: 1 // 0, "Wrong.steps.0. failed with ZeroDivisionError"),
    "returns nothing": (lambda r: None, "Wrong.steps.0. failed with TypeError"),
    "returns words": (lambda r: ["0F0"], "has the step .'0', 'F', '0'."),
    "an empty step": (lambda r: [()], "has the step ..:"),
    "deadlock": (
        lambda r: (
            [F(0, 0), B(0, 0), F(0, 1), B(0, 1)] if r == 0 else [F(1, 0), F(1, 1), B(1, 0), B(1, 1)]
        ),
        "rank 0 waits for 1B0 from rank 1; rank 1 waits for 0F1 from rank 0",
    ),
}


@pytest.mark.parametrize("steps, sentence", WRONG.values(), ids=WRONG)
def test_a_schedule_that_cannot_be_is_refused_by_rank_and_action(steps, sentence, family):
    class Wrong(Schedule):
        name = "wrong"

        def steps(self, rank):
            return steps(rank)

    with pytest.raises(Impossible, match=sentence):
        simulate(Wrong(2, 2), COST)


def test_a_bare_action_is_a_step_and_the_flush_s_update_may_be_left_out(family):
    class Bare(Schedule):
        name = "bare"

        def steps(self, rank):
            return [Action("F", rank, 0), Action("B", rank, 0)]

    spans = simulate(Bare(2, 1), COST, steps=2).spans(0)
    assert [s.name for s in spans] == ["0F0", "0B0", "0U0", "0F1", "0B1", "0U1"]
    assert [s.version for s in spans[:2]] == [0, 0] and spans[3].version == 1


def test_a_message_costs_alpha_plus_its_bytes_and_fan_in_queues():
    """Three ranks, all ready at 1 slot, send 10 bytes to rank 3 over 2-byte-a-slot links with alpha
    3."""
    cost = Cost(
        {"F": 1}, {"F": 10}, links={(r, 3): Link(alpha=3000, ticks=1000, bytes=2) for r in range(3)}
    )
    message = [Action("F", r, 0) for r in range(3)]
    lanes = {(r, "compute"): (Compute((message[r],)), Send(3, message[r])) for r in range(3)}
    lanes[3, "compute"] = tuple(Recv(r, message[r]) for r in range(3))
    assert [t.end for t in simulate(Plan(lanes, 4), cost).transfers()] == [
        9000,
        14000,
        19000,
    ]  # 1 + 3 + 5, then one port's 5 for each of the others
    assert simulate(Plan(lanes, 4), cost).bytes_sent(1) == 10


def test_sends_of_one_rank_queue_for_its_port():
    link = Link(alpha=3000, ticks=1000, bytes=2)
    first, second = Action("F", 0, 0), Action("F", 0, 1)
    cost = Cost({"F": 1}, {"F": 10}, links={(0, 1): link, (0, 2): link})
    lanes = {
        (0, "compute"): (Compute((first,)), Send(1, first), Send(2, second)),
        (1, "compute"): (Recv(0, first),),
        (2, "compute"): (Recv(0, second),),
    }
    assert {t.rank: (t.start, t.end) for t in simulate(Plan(lanes, 3), cost).transfers()} == {
        1: (1000, 9000),
        2: (6000, 14000),
    }


def test_lanes_of_a_rank_meet_only_by_launch_and_wait():
    work = [(Action("F", 0, i),) for i in range(4)]
    lanes = {
        (0, "compute"): (
            Compute(work[0]),
            Launch("go"),
            Compute(work[1]),
            Wait("done"),
            Compute(work[3]),
        ),
        (0, "comm:dp"): (Wait("go"), Compute(work[2]), Launch("done")),
    }
    assert {s.name: s.start for s in simulate(Plan(lanes, 1), {"F": 1}).spans()} == {
        "0F0": 0,
        "0F1": 1000,
        "0F2": 1000,
        "0F3": 2000,
    }


@pytest.mark.parametrize(
    "asked, told",
    [
        *(
            (lambda made=made: simulate(Schedule.named(made[0])(*made[1]), *made[2:]), told)
            for *made, told in (
                ("gpipe", (0, 1), COST, "ranks is 0"),
                ("gpipe", (2, 0), COST, "micro-batches is 0"),
                ("gpipe", (2.5, 1), COST, "whole number"),
                ("interleaved", (4, 6), COST, "4 or 8"),
                ("interleaved", (4, 2), COST, "take 4"),
                ("pipedream-2bw", (4, 3), COST, "take 4 micro-batches or 3 ranks"),
                ("gpipe", (2, 2), COST, 0, "steps is 0"),
                ("zb-h1", (2, 2), COST, "no duration for I"),
                ("gpipe", (2, 2), {"F": [1], "B": 2}, "names 1 stages and there is a stage 1"),
            )
        ),
        (
            lambda: simulate(Plan({(0, "compute"): (Wait("done"),)}, 1), {"F": 1}),
            "rank 0 waits on lane compute for done, which nobody launches",
        ),
        (
            lambda: simulate(Schedule.named("gpipe")(1, 1), COST).bubble("other"),
            'choose "makespan" or "window"',
        ),
    ],
)
def test_sizes_steps_prices_and_measures_are_checked(asked, told):
    with pytest.raises(Impossible, match=told):
        asked()


def test_every_schedule_is_refused_or_complete():
    for name, cls in Schedule.all().items():
        ran = 0
        for p, m in GRID:
            try:
                schedule = cls(p, m)
            except Impossible as refused:
                assert "take" in str(refused)  # it names what works
                continue
            simulate(schedule, {"F": 1, "B": 2, "I": 1, "W": 1})  # which refuses what is not whole
            ran += 1
        assert ran, name


# -- what a schedule holds, of stages by hand whose sizes tell the kinds apart, and what is rehearsed


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
