"""What replicas send and wait for: by closed forms of simulated plans, and as a run does it."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from bigtrain_lab import Cost, Mesh, Rank, Recipe, Schedule, launch, simulate
from bigtrain_lab.checks import clocks_differ, tensors_differ
from bigtrain_lab.core import Span
from bigtrain_lab.order import exposed
from bigtrain_lab.techniques import LAMB
from bigtrain_lab.techniques.replica_plan import with_replicas
from bigtrain_lab.train import train

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
    plan = with_replicas(written(m), 2, ranks, STAGES, 100, zero=zero)  # 25 weights: 15, 12 + 9, 6
    trace = simulate(plan, Cost({"F": 1, "B": 2}))
    flats = (15, 21, 6) if zero < 3 else (6, 9, 12, 15)
    times = {1: 2, 2: m + 1, 3: 3 * m}[zero]
    for rank in range(ranks):
        assert trace.bytes_sent(rank) == 2 * times * 4 * padded(flats, ranks) * (ranks - 1) // ranks
    half = with_replicas(written(m), 2, ranks, STAGES, 100, zero=zero, compute_dtype=torch.bfloat16)
    assert simulate(half, Cost({"F": 1, "B": 2})).bytes_sent(0) * 2 == trace.bytes_sent(0)


@pytest.mark.parametrize("m", [1, 3])
def test_what_the_computation_does_not_cover_is_exposed(m):
    """A collective takes 1, a forward 1, a backward 2, so that both of a backward's fit into it."""
    cost = Cost({"F": 1, "B": 2, "all_gather": 1, "reduce_scatter": 1})
    computed, plans = (
        3 * m * LAYERS,
        {z: with_replicas(written(m), 2, 3, STAGES, 36, zero=z) for z in (1, 2, 3)},
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


def test_stage_2_waits_for_the_gradient_before_and_stage_1_does_not():
    """The long backward of the first layer begins at 10, or when the bucket before has arrived."""
    cost = Cost({"F": 1, "B": [20, 2, 2, 2], "all_gather": 3, "reduce_scatter": 3})
    assert [
        simulate(with_replicas(written(1), 2, 3, STAGES, 36, zero=zero), cost).step_time
        for zero in (1, 2)
    ] == [10 + 20 + 5 * 3, 12 + 20 + 5 * 3]


def shared_by_two():
    """Stages of which the first and the last use one weight."""
    torch.manual_seed(0)
    stages = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)]
    stages[2].weight = stages[0].weight
    return stages


def sharing():
    """A recipe's model, which is asked for stage 0 first."""
    made = []

    def model(stage):
        made[:] = shared_by_two() if stage == 0 else made
        return made[stage]

    return model


def vectors(number):
    draw = torch.Generator().manual_seed(number)
    return torch.randn(2, 4, generator=draw, dtype=torch.float64), torch.ones(2, 4).double()


@pytest.mark.parametrize("zero, ahead", [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2)])
def test_a_weight_that_two_units_use_leaves_when_both_have_brought_it(zero, ahead, tmp_path):
    recipe = Recipe(
        model=sharing(),
        data=vectors,
        loss=nn.functional.mse_loss,
        optimizer=lambda weights: torch.optim.Adam(weights, 0.01),
        schedule=Schedule.of("0F0 1F0 2F0 2B0 1B0 0B0 0F1 1F1 2F1 2B1 1B1 0B1"),
        steps=2,
        replicas=2,
        zero=zero,
        bucket_bytes=200,
        data_parallel={"ahead": ahead},
    )
    cost = Cost({"F": 1, "B": 2, "all_gather": 1, "reduce_scatter": 3, "all_reduce": 3})
    stages = dict(enumerate(shared_by_two()))
    plan = with_replicas(recipe.order, 2, 2, stages, 200, zero=zero, ahead=ahead)
    run = recipe.run(cost=cost, directory=tmp_path / "run")
    assert tensors_differ(run.result, recipe.reference()) == []
    assert clocks_differ(simulate(plan, cost).where(Span), run.trace("modelled").where(Span)) == []


def by_dimensions(make):
    """The rule of thumb: decay on matrices alone."""

    def optimizer(weights):
        matrices, others = ([w for w in weights if (w.dim() >= 2) == is_one] for is_one in (1, 0))
        return make([{"params": matrices, "weight_decay": 0.5}, {"params": others}])

    return optimizer


DECAYING = {
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.0),
    "lamb": partial(LAMB, lr=0.01, weight_decay=0.0),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
}


def decayed(name, zero=0, replicas=1):
    return Recipe(
        model=lambda stage: shared_by_two()[stage],
        data=vectors,
        loss=nn.functional.mse_loss,
        optimizer=by_dimensions(DECAYING[name]),
        schedule=Schedule.of("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1"),
        steps=3,
        samples=12,
        replicas=replicas,
        zero=zero,
        clip=0.1,
    )


def all_decayed(rank):
    found, own = {}, Rank(rank.index, Mesh(dp=2, pp=1), rank.device)
    for name, zero in product(DECAYING, range(4)):
        for stage, weights in train(decayed(name, zero, 2), own).weights.items():
            found |= {f"{name} {zero} {stage}.{at}": w.numpy() for at, w in weights.items()}
    own.finish()
    return found


def test_decay_of_matrices_alone_is_that_of_one_process_at_every_stage(tmp_path):
    order, expected = Schedule.of(" ".join(f"0F{n} 1F{n} 1B{n} 0B{n}" for n in range(4))), {}
    for name in DECAYING:
        one = replace(decayed(name), steps=3, samples=None, schedule=order).reference()
        expected |= {
            f"{name} {zero} {at}": one[at] for zero in range(4) for at in one if at != "loss"
        }
    assert tensors_differ(launch(all_decayed, 2, directory=tmp_path / "run").result, expected) == []
