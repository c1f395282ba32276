"""What sharded ranks send, wait for and hold, by closed forms of simulated plans."""

from itertools import product

import pytest
import torch
from torch import nn

from bigtrain_lab.core import Cost, Link, Mesh
from bigtrain_lab.order.plan import Compute, Together
from bigtrain_lab.order.rates import exposed
from bigtrain_lab.order.schedule import Schedule
from bigtrain_lab.order.simulate import simulate
from bigtrain_lab.techniques.shard_plan import with_shards

LAYERS, LANE = 4, "comm:dp"
STAGES = {at: nn.Linear(3, 2 + at, bias=False, device="meta") for at in range(LAYERS)}


def written(micro_batches: int) -> Schedule:
    """One rank, layer by layer."""
    words = []
    for m in range(micro_batches):
        words += [f"{at}F{m}" for at in range(LAYERS)] + [
            f"{at}B{m}" for at in reversed(range(LAYERS))
        ]
    return Schedule.of(" ".join(words + [f"{at}U{micro_batches - 1}" for at in range(LAYERS)]))


def padded(counts, ranks: int) -> int:
    return sum(-(-count // ranks) * ranks for count in counts)


@pytest.mark.parametrize("zero, ranks, m", [*product((1, 2, 3), (2, 3, 5), (1, 3))])
def test_a_rank_sends_the_bytes_of_the_paper_and_the_padding(zero, ranks, m):
    """2, m + 1 and 3 m times (N-1)/N of the padded parameters."""
    plan = with_shards(zero, written(m), 2, ranks, STAGES, 100)  # 25 weights: 15, 12 + 9, 6
    trace = simulate(plan, Cost({"F": 1, "B": 2}))
    flats = (15, 21, 6) if zero < 3 else (6, 9, 12, 15)
    times = {1: 2, 2: m + 1, 3: 3 * m}[zero]
    for rank in range(ranks):
        assert trace.bytes_sent(rank) == 2 * times * 4 * padded(flats, ranks) * (ranks - 1) // ranks
    half = with_shards(zero, written(m), 2, ranks, STAGES, 100, compute_dtype=torch.bfloat16)
    sent = simulate(half, Cost({"F": 1, "B": 2})).bytes_sent(0)
    assert sent * (2 if zero == 3 else 1) == trace.bytes_sent(0)


@pytest.mark.parametrize("m", [1, 3])
def test_what_the_computation_does_not_cover_is_exposed(m):
    """A collective takes 1, a forward 1, a backward 2, so that both of a backward's fit into it."""
    cost = Cost({"F": 1, "B": 2, "all_gather": 1, "reduce_scatter": 1})
    computed, plans = (
        3 * m * LAYERS,
        {z: with_shards(z, written(m), 2, 3, STAGES, 36) for z in (1, 2, 3)},
    )
    times = {zero: simulate(plan, cost).step_time for zero, plan in plans.items()}
    # Buckets of one layer: the last scatter waits for nothing, and all are gathered after the
    # update.
    assert times[1] == times[2] == computed + 1 + LAYERS
    # The first gather and the last scatter. Where a layer follows itself its gather is not one
    # ahead, and at the front of the model the scatter of its gradients delays the next one too.
    assert times[3] == computed + 2 + m + 2 * (m - 1)
    slow = Cost({"F": 1, "B": 2, "all_gather": 100, "reduce_scatter": 100})
    late = {zero: simulate(plan, slow) for zero, plan in plans.items()}
    # The first scatter leaves after the last micro-batch's first backward, and then the lane is
    # busy.
    assert late[1].step_time == computed - 2 * (LAYERS - 1) + 100 * 2 * LAYERS
    assert late[3].step_time > 100 * 3 * m * LAYERS
    assert all(trace.step_time - exposed(trace) == computed for trace in late.values())


def test_stage_3_never_holds_more_than_two_neighbours():
    """From a gather's start to the end of the action that it is for. Nothing else travels where a
    layer follows itself at once, nor beside an update."""
    plan = with_shards(3, written(2), 2, 2, STAGES, 1)
    for cost in (
        {"F": 1, "B": 2, "all_gather": 1, "reduce_scatter": 1},
        {"F": 1, "B": 2, "all_gather": 9, "reduce_scatter": 9},
    ):
        trace = simulate(plan, Cost(cost))
        ends = {span.name: span.end for span in trace.spans(0) if span.lane == "compute"}
        held = []
        for span in trace.spans(0):
            if span.kind == "all_gather":
                action = span.name.removeprefix("parameters of ")
                held.append((span.start, ends[action], int(action[0])))
        assert len(held) == 2 * 2 * 2 * LAYERS
        for start, _, _ in held:
            alive = {unit for begin, end, unit in held if begin <= start < end}
            assert len(alive) <= 2 and max(alive) - min(alive) <= 1
        assert sum(span.kind == "reduce_scatter" for span in trace.spans(0)) == 2 * 2 * LAYERS
    beside = {
        str(op.step[0]): op.beside for op in plan.lanes[0, "compute"] if isinstance(op, Compute)
    }
    assert {name for name, told in beside.items() if not told} == {
        "3F0",
        "3F2",
        *(f"{at}U{m}" for at in range(LAYERS) for m in (1, 3)),
    }


def test_stage_1_shards_each_stage_and_slice_among_its_own_replicas():
    order = Schedule.named("1f1b")(2, 4)
    stages = {0: nn.Linear(3, 2, device="meta"), 1: nn.Linear(3, 4, device="meta")}
    plan, mesh = with_shards(1, order, 2, 2, stages, 100, slices=2), Mesh(dp=2, pp=2, tp=2)
    trace = simulate(
        plan,
        Cost({"F": 1, "B": 2}, links={pair: Link(0, 1, 1) for pair in product(range(8), repeat=2)}),
    )
    for rank in range(8):
        calls = [op for op in plan.lanes[rank, LANE] if isinstance(op, Together)]
        count = (8, 16)[mesh.coords(rank)["pp"]]
        assert {op.ranks for op in calls} == {mesh.peers(rank, "dp")}
        assert sum(op.bytes for op in calls) == 2 * 2 * 4 * count
        gathered = [s.end for s in trace.spans(rank) if s.kind == "all_gather"]
        first = min(
            s.start for s in trace.spans(rank) if s.lane == "compute" and s.name.endswith("F4")
        )
        assert len(gathered) == 2 and first >= gathered[0]
