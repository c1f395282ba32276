"""What sharded ranks send and wait for, by closed forms of simulated plans."""

from itertools import product

import pytest
import torch
from torch import nn

from bigtrain_lab.core import Cost
from bigtrain_lab.order.rates import exposed
from bigtrain_lab.order.schedule import Schedule
from bigtrain_lab.order.simulate import simulate
from bigtrain_lab.techniques.shard_plan import with_shards

LAYERS = 4
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
