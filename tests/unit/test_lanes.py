"""Lanes of a rank: what is launched runs in order and beside the program, and a failure on a lane is
told."""

import threading
import time
from fractions import Fraction

import pytest
import torch

from bigtrain_lab import Action, Cost, Group, Impossible, Mesh, Plan, Schedule, launch
from bigtrain_lab.core.cost import Inside
from bigtrain_lab.order.plan import Wait, lower
from bigtrain_lab.runtime.failure.diagnose import deadlock
from bigtrain_lab.runtime.talk.execute import execute

from .ranks import fails, written


@pytest.mark.parametrize(
    "wrong, told",
    [
        (
            lambda plan: plan.placed(Mesh(dp=2, pp=3), "pp"),
            "has 2 ranks and the mesh has 3 along pp",
        ),
        (
            lambda plan: plan.placed(Mesh(dp=2), "tp"),
            "no axis 'tp': its axes are dp",
        ),
        (
            lambda plan: plan.joined(plan),
            "have 0F0 on rank 0: give it another name",
        ),
        (
            lambda plan: plan.joined(Plan({}, 2, 3)),
            "of 1, 3 training steps: join plans of as many",
        ),
    ],
)
def test_plans_that_do_not_fit_are_refused_in_a_sentence(wrong, told):
    with pytest.raises(Impossible, match=told):
        wrong(lower(Schedule.named("gpipe")(2, 2)))


def test_a_lane_runs_what_is_launched_in_its_order_and_a_wait_moves_its_waiter_to_the_end(tmp_path):
    """By the streams' rules: a function starts when its lane and its issuer have come so far, and
    who does not wait goes on."""

    def program(rank):
        lane, order = rank.lane("dp"), []
        for k in range(2):
            with rank.span((Action("F", 0, k),)):
                pass
            last = lane.launch(
                lambda group, k=k: (
                    order.append(k),
                    group.all_reduce(torch.full((3,), float(rank.index)), name=f"b{k}"),
                )[1],
                f"b{k}",
            )
        with rank.span((Action("F", 0, 2),)):
            pass
        total = last.wait()
        with rank.span((Action("F", 0, 3),)):
            pass
        lane.launch(lambda group: group.all_reduce(torch.ones(1), name="nobody waits"))
        return {f"order{rank.index}": order, f"total{rank.index}": total}

    run = launch(
        program,
        2,
        mesh=Mesh(dp=2),
        cost={"F": [1], "all_reduce": 4},
        jitter_s=0.002,
        directory=tmp_path / "run",
    )
    spans = {(s.lane, s.name): (s.start, s.end) for s in run.wait().spans(0)}
    assert spans == {
        ("compute", "0F0"): (0, 1000),
        ("compute", "0F1"): (1000, 2000),
        ("compute", "0F2"): (2000, 3000),
        ("comm:dp", "b0"): (1000, 5000),
        ("comm:dp", "b1"): (5000, 9000),
        ("compute", "0F3"): (9000, 10000),
        ("comm:dp", "nobody waits"): (10000, 14000),
    }
    assert all(
        (run.result[f"order{r}"] == [0, 1]).all() and (run.result[f"total{r}"] == 1).all()
        for r in range(2)
    )


@pytest.mark.parametrize(
    "wrong, told",
    [
        (
            lambda group: group.all_reduce(torch.ones(3), name="mlp"),
            (
                "calls all_reduce of 12 bytes (mlp) in 0F0, where its plan has all_reduce of 8"
                " bytes (mlp)"
            ),
        ),
        (lambda group: None, "called 0 collectives in 0F0, and its plan has 1"),
        (
            lambda group: [group.all_reduce(torch.ones(2), name="mlp") for _ in range(2)],
            "where its plan has no more",
        ),
    ],
    ids=["bytes", "none", "twice"],
)
def test_a_run_that_calls_other_collectives_than_its_plan_is_refused(wrong, told):
    def program(rank):
        with rank.span((Action("F", 0, 0),)):
            wrong(rank.group("tp"))

    cost = Cost({"F": 1}, inside={("F", 0): (Inside(Fraction(1, 2), "all_reduce", 8, "mlp"),)})
    assert told in fails(program, 2, mesh=Mesh(tp=2), cost=cost).diagnosis


@pytest.mark.parametrize(
    "mode",
    [{"record": False}, {"clock": False}, {"cost": {}}],
    ids=["plain", "measured", "modelled"],
)
def test_a_technique_makes_a_lane_of_whatever_group_it_gets(mode, tmp_path):
    def program(rank):
        group = Group.of(None) if "record" in mode else rank.group()
        lane = group.lane()
        assert group.lane() is lane and lane.group is not group and lane.group.size == 2
        bucket = torch.ones(4)
        handle = lane.launch(lambda own: own.all_reduce(bucket))
        group.barrier()  # the program's own collectives go on meanwhile
        assert handle.wait() is bucket and handle.wait() is bucket
        bad = lane.launch(lambda own: 1 / 0, "bucket 7")
        for handle in (bad, lane.launch(lambda own: own.barrier())):  # nothing runs after a failure
            with pytest.raises(
                RuntimeError,
                match=(
                    f"Rank {rank.index} failed on lane comm, in bucket 7: ZeroDivisionError:"
                    " division by zero"
                ),
            ) as told:
                handle.wait()
        assert isinstance(told.value.__cause__, ZeroDivisionError)
        lane.finish()
        return {f"bucket{rank.index}": bucket}

    result = launch(program, 2, directory=tmp_path / "run", **mode).result
    assert (result["bucket0"] == 2).all() and (result["bucket1"] == 2).all()


def test_a_lane_has_ended_when_its_rank_goes_on(tmp_path):
    """Its last mark comes late here: after the end of the log that would count as a change."""

    def program(rank):
        before, lane = threading.active_count(), rank.group().lane()
        recorder, mark = lane.group.recorder, lane.group.recorder.mark

        def late(what, *about, **more):
            time.sleep(0.2 * (what == "idle"))
            return mark(what, *about, **more)

        recorder.mark = late
        lane.launch(lambda own: None)
        lane.finish()
        return {"left": torch.tensor(threading.active_count() - before)}

    run = launch(program, 1, directory=tmp_path / "run")
    assert run.result["left"] == 0 and run.damage is None


# -- a failure on a lane is told like one on compute -----------------------------------------------


def bad_bucket(rank, group):
    return group.all_reduce(torch.zeros(3)) if rank.index else [0][7]


@pytest.mark.parametrize("asks", [True, False])
def test_an_exception_on_a_lane_is_told_with_its_line_whether_or_not_its_program_comes_to_wait(
    asks,
):
    def program(rank):
        handle = rank.lane(None, "comm").launch(lambda group: bad_bucket(rank, group), "bucket 0")
        if rank.index == 0 and not asks:
            rank.group().recv(1, name="x")  # which rank 1 would send after its bucket
        handle.wait()
        rank.group().isend(torch.ones(1), 0, name="x")

    run = fails(program, 2, stall_s=1000)
    assert run.diagnosis.startswith(
        "Rank 0 failed on lane comm, in bucket 0: IndexError: list index out of range\n"
        f"  at {__file__}:{bad_bucket.__code__.co_firstlineno + 1}, in bad_bucket: "
    )
    assert (
        f"Meanwhile rank {1 if asks else '0 waits for x from rank 1; rank 1'} " in run.diagnosis
        and run.waits[0].state == "failed"
    )


def test_a_deadlock_goes_through_lanes():
    """Rank 0's lane waits for rank 1's, which waits to be launched by a program that waits for rank
    0's program."""

    def program(rank):
        lane = rank.lane(None, "comm")
        if rank.index == 0:
            lane.launch(lambda group: group.all_reduce(torch.ones(1), name="b"), "bucket").wait()
        rank.group().recv(1 - rank.index, name="x")

    run = fails(program, 2, stall_s=1000)
    assert run.diagnosis.startswith(
        "Deadlock: rank 0 (lane comm) waits in b for rank 1; rank 1 waits for x from rank 0; "
        "rank 0 waits for bucket (launch 0) on lane comm."
    )


AWAITS = [("signal", "compute", "comm 0"), ("await", "compute", "b", "comm")]
ASKS, WAITS = [("wait", "compute", 0, 7, "x", "", ())], ("wait", "comm", 1, 9, "y", "", ())


@pytest.mark.parametrize(
    "logs, told",
    [
        ((AWAITS, ASKS), None),  # the lane's thread has not begun yet
        (
            ([*AWAITS, ("begin", "comm", 5), ("idle", "comm", "comm 0")], ASKS),
            None,
        ),  # nor taken what was launched
        (
            (
                [*AWAITS, ("idle", "comm", "comm 0"), ("got", "comm", -1), WAITS],
                ASKS,
            ),
            (
                "Deadlock: rank 0 (lane comm) waits for y from rank 1; rank 1 waits for x from rank"
                " 0; rank 0 waits for b on lane comm."
            ),
        ),
        (
            ([*AWAITS, WAITS], [("send", "comm", 0, 9, "y"), *ASKS]),
            None,
        ),  # on its way, on the lane
        (
            ([*AWAITS, WAITS], [("send", "compute", 0, 9, "y"), *ASKS]),
            "Deadlock",
        ),  # on another lane
        (
            ([*AWAITS, ("signal", "comm", "b"), ("idle", "comm", "comm 1")], ASKS),
            None,
        ),  # what it waits for was posted
        (
            (AWAITS[1:], ASKS),
            "Deadlock: rank 0 waits for b on lane comm",
        ),  # nobody launched it
        (
            ([("idle", "comm", "comm 0"), "wait 1 8"], ["done"]),
            "Rank 0 waits for m from rank 1, which has finished without",
        ),
    ],
)
def test_a_deadlock_of_lanes_is_certain_from_the_logs(logs, told, tmp_path):
    found = deadlock(written(tmp_path, dict(enumerate(logs))))
    assert found is None if told is None else found.startswith(told)


def launched_and_awaited(rank):
    with rank.span("U"):
        rank.lane().launch(lambda group: None).wait()


@pytest.mark.parametrize(
    "wrong, told",
    [
        (
            lambda rank: rank.lane().group.barrier(),
            (
                "Rank 0 calls barrier of lane comm from lane compute: let a lane's group be used by"
                " what"
            ),
        ),
        (
            lambda rank: rank.lane().launch(lambda own: rank.group().barrier()).wait(),
            "Rank 0 calls barrier of lane compute from lane comm",
        ),
        (
            lambda rank: (rank.lane(None, "x"), rank.lane("world", "x")),
            "Rank 0 has a lane x of another group: give this one a name of its own",
        ),
        (
            launched_and_awaited,
            (
                "Rank 0 launches something in span U and waits there: what is launched in a span"
                " starts at its end"
            ),
        ),
        (
            lambda rank: execute(Plan({(0, "compute"): (Wait("go"),)}, 1), rank),
            "Rank 0 waits for go, which none of its lanes launches: launch it before",
        ),
        (
            lambda rank: execute(Plan({}, 3), rank),
            "The plan is for 3 ranks and there are 1: launch as many",
        ),
    ],
)
def test_what_would_mix_lanes_is_refused_in_a_sentence(wrong, told):
    assert told in fails(wrong, 1, cost={"U": 1}).diagnosis
