"""A data loader is lanes of its rank: what real ranks model is what the plan predicts, and a slow
disk hides behind workers."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from bigtrain_lab import Cost, Impossible, Recipe, Schedule, launch, simulate
from bigtrain_lab.checks import clocks_differ, tensors_differ
from bigtrain_lab.core import Span, Transfer
from bigtrain_lab.techniques.data_loader import Loader, Loading, with_loads
from bigtrain_lab.techniques.replica_plan import with_replicas
from bigtrain_lab.train import train

ORDER = Schedule.named("1f1b")(1, 2)
COST = Cost(
    {"F": 1, "B": 2, "U": "0.1", "D": "1.7", "C": "0.3"},
    of_batch={(0, 1): {"F": 4, "D": "2.9"}, (1, 3): {"C": 2}},
    slowdown={1: "1.2"},
)


def data(number):
    draw = torch.Generator().manual_seed(number)
    return torch.randn(4, 3, generator=draw, dtype=torch.float64), torch.randn(
        4, 3, generator=draw, dtype=torch.float64
    )


def model(stage):
    torch.manual_seed(stage)
    return nn.Linear(3, 3, dtype=torch.float64)


def recipe_of(ranks: int) -> Recipe:
    return Recipe(
        model=model,
        data=data,
        loss=nn.functional.mse_loss,
        optimizer=lambda weights: torch.optim.SGD(weights, 0.1),
        steps=3,
        schedule=ORDER,
        replicas=ranks,
        weights=lambda window: [1 / len(window)] * len(window),
    )


def loaded(rank, recipe: Recipe, loading: Loading):
    """Train on what a loader of this rank gives."""
    windows = [window[rank.index :: rank.size] for window in recipe.windows]
    trained = train(replace(recipe, data=Loader(recipe.data, windows, loading, rank)), rank)
    return recipe.arrays(trained.weights, trained.losses, trained.replica)


@pytest.mark.parametrize(
    "ranks, loading", [(2, Loading(2, 2)), (2, Loading(3, 1, pinned=False)), (1, Loading())]
)
def test_a_run_loads_as_predicted(ranks, loading, tmp_path):
    """Micro-batches of other lengths, a slow rank, sleeps at random; and the numbers are those of
    one process."""
    recipe = recipe_of(ranks)
    run = launch(
        partial(loaded, recipe=recipe, loading=loading),
        ranks,
        mesh=recipe.mesh,
        cost=COST,
        steps=3,
        jitter_s=0.002,
        directory=tmp_path / "run",
    )
    modelled = run.wait()
    plan = with_replicas(ORDER, 3, ranks, {0: model(0)}, Recipe.bucket_bytes)
    assert (
        clocks_differ(
            simulate(with_loads(plan, loading, [(0, 1), (2, 3), (4, 5)]), COST),
            replace(modelled, events=modelled.where((Span, Transfer)).events),
        )
        == []
    )
    assert {span.lane for span in modelled.spans(0) if span.kind in "DC"} == {
        *loading.lanes,
        *["compute"] * bool(loading.alone),
    }
    assert tensors_differ(run.result, recipe.reference()) == []


def test_workers_hide_a_slow_disk_and_prefetching_what_some_batches_take_longer():
    def step(loading, **more):
        plan = with_replicas(Schedule.named("1f1b")(1, 1), 60, 1, {0: model(0)}, 1)
        cost = Cost({"F": 1, "B": 2, "U": 0, "D": 5, "C": 1}, **more)
        return float(simulate(with_loads(plan, loading, [(n,) for n in range(60)]), cost).step_time)

    # The first micro-batch comes after 6 slots, or 5 and a copy; then each costs what takes
    # longest.
    assert step(Loading()) == 9
    assert step(Loading(1, 1)) == step(Loading(1, 4)) == pytest.approx(6 + 3 / 60)
    assert step(Loading(2, 1)) == step(Loading(4, 2)) == pytest.approx(3 + 6 / 60)
    assert step(Loading(2, 1, pinned=False)) == pytest.approx(4 + 5 / 60)
    late = {(0, n): {"D": 14} for n in range(9, 60, 10)}
    assert (
        step(Loading(4, 1), of_batch=late)
        > step(Loading(4, 3), of_batch=late)
        == pytest.approx(3 + 6 / 60)
    )


def test_a_rank_that_the_last_window_leaves_without_a_micro_batch(tmp_path):
    """It computes one that counts nothing, and waits for no worker."""
    recipe = replace(recipe_of(2), samples=9, schedule="1f1b", micro_batches=2)
    run = launch(
        partial(loaded, recipe=recipe, loading=Loading(2)), 2, mesh=recipe.mesh, directory=tmp_path
    )
    assert [len(window) for window in recipe.windows] == [4, 4, 1]
    assert tensors_differ(run.result, recipe.reference()) == []


@pytest.mark.parametrize(
    "settings", [{"workers": -1}, {"workers": 1.5}, {"workers": 2, "prefetch": 0}, {"slow_s": -1}]
)
def test_what_no_worker_can_keep_is_one_sentence(settings):
    with pytest.raises(Impossible, match=f"^{[*settings][-1]} is "):
        Loading(**settings)
