"""A recipe: what it trains, what it refuses, and that a lab's program is its loop."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bigtrain_lab import Impossible, Mesh, Rank, RankFailed, Recipe, Schedule, launch
from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.models import Classifier, MLPStage
from bigtrain_lab.order import by_layers
from bigtrain_lab.techniques import LAMB
from bigtrain_lab.train.recipe import Lens, train

from .threads import patched


def stage(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double()


def data(number):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number)).double()
    return x, x.sin()


PLAIN = Recipe(
    model=stage,
    data=data,
    loss=nn.functional.mse_loss,
    optimizer=lambda p: torch.optim.Adam(p, 1e-2),
    steps=3,
    micro_batches=4,
    samples=10,
)


def here(recipe, lens=Lens()):
    return train(recipe, Rank(0, Mesh(world=1), torch.device("cpu")), lens)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip": 0.1},
        {"recompute": "sqrt"},
        {"weights": lambda window: [n + 1.0 for n in range(len(window))]},
        {"learning_rate": lambda update: 0.05 / update},
        {"schedule": "gpipe", "clip": 0.1, "recompute": "keep-none"},
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
def test_one_device_is_plain_training_and_its_last_window_is_short(changes):
    recipe = replace(PLAIN, **changes)
    assert [len(window) for window in recipe.windows] == [4, 4, 2]
    found, expected = (
        recipe.program(Rank(0, Mesh(world=1), torch.device("cpu"))),
        recipe.reference(),
    )
    assert (
        tensors_differ(found, expected) == []
        and len(found["loss"]) == 10
        and found.keys() > {"0.weight", "2.bias"}
    )


def weighed(window):
    return [n + 1.0 for n in range(len(window))]


class Branches(nn.Module):
    """A sample decides what is used; one layer nobody uses, and its weights must not decay."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(number)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).double()

    def forward(self, x):
        return self.layers[2](self.layers[0 if x.sum() > 0 else 1](x))


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 9, "clip": 0.1},
        {"ranks": 2, "samples": 19, "weights": weighed, "recompute": "sqrt"},
        {"samples": 11, "zero": 2},
        {"samples": 11, "zero": 3, "weights": weighed},
        *(
            {
                "model": Branches,
                "optimizer": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.5),
                "data_parallel": {"allow_unused": True},
                "bucket_bytes": 2**20,
                "micro_batches": 3,
                "samples": None,
            }
            | {"zero": zero}
            for zero in (0, 2, 3)
        ),
    ],
    ids=[
        "one has none of the last window",
        "1f1b, one has fewer",
        "zero 2, one has fewer",
        "zero 3, one has fewer",
        "branches",
        "zero 2, branches",
        "zero 3, branches",
    ],
)
def test_replicas_are_plain_training(changes, tmp_path):
    recipe = replace(PLAIN, replicas=2, **{"bucket_bytes": 400} | changes)
    run = recipe.run(directory=tmp_path / "run")
    assert run.replicas == [] and tensors_differ(run.result, recipe.reference()) == []


def dropping(number):
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).double()


def test_replicas_draw_masks_of_their_own_and_a_recompute_draws_them_again(tmp_path):
    """All micro-batches are alike, so losses differ by the masks alone."""
    found = []
    for recompute in (None, "keep-none"):
        recipe = replace(
            PLAIN,
            model=dropping,
            data=lambda number: data(0),
            replicas=2,
            micro_batches=1,
            samples=None,
            recompute=recompute,
        )
        run = recipe.run(directory=tmp_path / str(recompute))
        assert run.replicas == []
        found.append(run.result)
    assert (
        tensors_differ(*found) == []
        and found[0]["loss of replica 0"][0] != found[0]["loss of replica 1"][0]
    )


def test_stages_draw_masks_of_their_own():
    """Of two masks in a row half of a half is left."""
    run = Recipe(
        model=lambda number: nn.Sequential(nn.PReLU(), nn.Dropout(0.5)),
        data=lambda number: (torch.ones(4, 256), torch.ones(())),
        loss=lambda output, target: (output > 0).float().mean() + 0 * output.sum(),
        optimizer=lambda weights: torch.optim.SGD(weights, 0.1),
        ranks=2,
    ).run()
    assert run.result["loss"] == pytest.approx(0.25, abs=0.1)


def test_replicas_that_begin_with_other_weights_are_refused(tmp_path):
    def drifted(number):
        module = stage(number)
        module[2].bias.data += torch.distributed.get_rank()
        return module

    run = replace(PLAIN, model=drifted, replicas=2).run(directory=tmp_path / "run")
    with pytest.raises(
        RankFailed,
        match="The ranks begin with different weights, .*rank 0: 0.2.bias .*: draw them from a seed",
    ):
        run.wait()


TWO = {"schedule": Schedule.of("0F0 0F1 0B0 0B1"), "micro_batches": 2}


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"steps": 0}, "steps is 0: give a whole number of at least 1."),
        ({"clip": -1.0}, "clip is -1.0: give the largest norm"),
        ({"learning_rate": 0.1}, "learning_rate is 0.1: give a function of the update's number"),
        (
            {
                "schedule": "pipedream",
                "ranks": 2,
                "samples": None,
                "learning_rate": lambda update: 0.1,
            },
            "for learning_rate: leave learning_rate out",
        ),
        ({"model": nn.Linear(2, 2)(torch.zeros(2))}, "model is tensor"),
        ({"schedule": "gpip"}, "There is no schedule called 'gpip'"),
        ({"precision": "fp8"}, "There is no level of precision called 'fp8'"),
        ({"recompute": "some"}, "There is no recompute called 'some'"),
        ({"recompute": 3}, "recompute is 3: give the name of a plan"),
        (
            {"schedule": "pipedream", "ranks": 2, "clip": 1.0},
            (
                "pipedream updates each stage at times of its own, with no gradient of a whole window"
                " for clip"
            ),
        ),
        (
            {"schedule": "pipedream", "ranks": 2, "samples": None, "precision": "bf16"},
            "for precision: leave precision out, or take a synchronous schedule.",
        ),
        (
            {"schedule": Schedule.of("0F0 0B0"), "micro_batches": 3, "samples": None},
            "micro_batches is 3 and the schedule has 1: leave micro_batches out.",
        ),
        (
            {
                "schedule": Schedule.of("0F0 1F0 1B0 1U0 0B0 0U0"),
                "samples": None,
                "micro_batches": 1,
                "clip": 1.0,
            },
            (
                "written updates on rank 0 before its last backward, and clip needs the whole gradient:"
                " put its updates at the end."
            ),
        ),
        (
            {"schedule": "pipedream", "ranks": 2, "samples": None, "replicas": 2},
            "no gradient of a whole window for replicas: leave replicas out",
        ),
        (
            {
                "schedule": Schedule.of("0F0 1F0 1B0 1U0 0B0 0U0"),
                "samples": None,
                "micro_batches": 1,
                "replicas": 2,
            },
            "and the mean of replicas needs the whole gradient",
        ),
        ({"weights": [1.0]}, "weights is [1.0]: give a function"),
        (
            {"model": nn.Linear(2, 2)},
            "model is Linear(in_features=2, out_features=2, bias=True): give a function",
        ),
        ({"replicas": 0}, "replicas is 0: give a whole number"),
        *(
            (changes, "The last window has 1 micro-batches")
            for changes in (
                {"schedule": "interleaved", "ranks": 2, "samples": 9},
                TWO | {"samples": 3},
                TWO | {"samples": 7, "replicas": 2},
            )
        ),
        (
            {"replicas": 2, "zero": 2, "data_parallel": {"all_reduce": print}},
            "data_parallel has a strategy or an all_reduce, and stage 2 of ZeRO",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else ", ".join(each),
)
def test_parts_that_contradict_each_other_are_one_sentence(changes, told):
    with pytest.raises(Impossible) as refused:
        replace(PLAIN, **changes)
    assert told in str(refused.value) and "\n" not in str(refused.value)


NAN, OTHER = float("nan"), nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    "name, value",
    [
        *(
            (name, value)
            for name in (
                "model",
                "data",
                "loss",
                "optimizer",
                "weights",
                "recompute",
                "learning_rate",
            )
            for kind, value in {
                "None": None,
                "a float": 1.0,
                "numpy": np.ones(3),
                "text": "text",
            }.items()
            if (name, kind) != ("learning_rate", "a float")
        ),
        ("model", nn.Linear),
        ("data", ()),
        ("data", (torch.ones(1),)),
        ("data", (torch.ones(0, 8), torch.ones(0, 8))),
        ("data", (1, 2, 3)),
        ("data", (np.ones((4, 8)), np.ones((4, 8)))),
        ("data", (torch.ones(4, 8), torch.ones(4, 8), 3)),
        ("loss", torch.ones(2)),
        ("loss", torch.tensor(NAN)),
        ("optimizer", torch.optim.SGD([OTHER], 0.1)),
        ("learning_rate", NAN),
        ("learning_rate", -0.1),
        ("learning_rate", float("inf")),
        ("weights", [NAN] * 4),
        ("weights", [1.0]),
        ("weights", [None] * 4),
    ],
    ids=str,
)
def test_what_a_function_returned_wrongly_is_told_with_its_place(name, value):
    def returns(*args):
        return value

    place = f"line {returns.__code__.co_firstlineno} of .*test_recipe.py.* returned"
    with pytest.raises(Impossible, match=f"^{name}.*{place}.*: let it return") as refused:
        here(replace(PLAIN, **{name: returns}))
    assert "\n" not in str(refused.value)


def test_an_optimizer_s_rate_is_a_number_and_its_parameters_are_those_given():
    for made in (
        lambda weights: torch.optim.SGD(weights, NAN),
        lambda weights: torch.optim.SGD(weights, torch.tensor(NAN)),
        lambda weights: torch.optim.SGD(weights, 0.1, weight_decay=NAN),
        lambda weights: torch.optim.SGD([*weights, OTHER], 0.1),
    ):
        with pytest.raises(
            Impossible, match="of no other parameters than it is given, at a finite rate"
        ):
            here(replace(PLAIN, optimizer=made))


def test_a_training_that_diverges_ends_in_nan_and_is_not_refused():
    assert not np.isfinite(
        here(replace(PLAIN, optimizer=lambda weights: torch.optim.SGD(weights, 1e300))).losses[-1]
    )


def test_a_program_trains_again_with_other_sizes_and_a_stage_may_change_its_input(tmp_path):
    in_place = lambda n: nn.Sequential(nn.ReLU(inplace=True), *stage(n))  # noqa: E731
    one = replace(PLAIN, model=in_place, schedule="zb-h1", samples=None, ranks=2)
    other = replace(one, schedule="pipedream", data=lambda n: [part[:3] for part in data(n)])

    def both(train):
        return {f"{k} {n}": x for k, r in enumerate((one, other)) for n, x in train(r).items()}

    run = launch(lambda rank: both(lambda r: r.program(rank)), 2, directory=tmp_path / "run")
    assert tensors_differ(run.result, both(Recipe.reference)) == []


def test_a_last_window_of_two_fits_two_ranks():
    assert replace(PLAIN, schedule="interleaved", ranks=2).order.stages == 4


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def hooked(number):
    module = stage(number)
    module.register_forward_pre_hook(lambda module, given: (3 * given[0],))
    module.register_forward_hook(lambda module, given, result: 2 * result)
    return module


def encoder(number):
    torch.manual_seed(number)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False).double()


STAGES = {  # what it is: (stage, how often a plan that keeps nothing calls its first layer)
    "a Sequential": (stage, 3),
    "with hooks": (hooked, 3),
    "a subclass": (lambda number: Classifier(8, 8, 2, 8, dtype=torch.float64), 2),
    "residual": (lambda number: Residual(*stage(number)), 1),
    "a forward of its own": (lambda number: patched(stage(number)), 1),
    "torch's encoder": (encoder, 1),
    "layers and tanh": (lambda number: MLPStage(3, 8, 0, 3, dtype=torch.float64), 1),
}


@pytest.mark.parametrize("kind", STAGES)
def test_a_plan_runs_the_stage_and_not_what_it_calls_layers(kind):
    """What is no chain is one layer; the weights are those without a plan, to the bit."""
    made, calls = [], []
    model, often = STAGES[kind]

    def watched(number):
        made.append(model(number))
        leaf = next(part for part in made[-1].modules() if type(part).__name__ == "Linear")
        leaf.register_forward_pre_hook(lambda *_: calls.append(1))
        return made[-1]

    def sample(number):
        return [each.view(2, 2, 8) for each in data(number)] if "enc" in kind else data(number)

    recipe = replace(PLAIN, model=watched, data=sample, steps=2, micro_batches=1, samples=None)
    for plan in (None, "keep-none", "sqrt", "keep-all"):
        calls.clear()
        here(replace(recipe, recompute=plan))
        assert all(map(torch.equal, made[0].parameters(), made[-1].parameters()))
        assert plan != "keep-none" or len(calls) == 2 * often


def test_an_optimizer_that_clips_is_refused_on_several_stages():
    """Each stage would be clipped by a norm of its own."""
    recipe = replace(PLAIN, optimizer=lambda weights: LAMB(weights, max_grad_norm=1.0))
    assert here(recipe) is not None
    with pytest.raises(Impossible, match="give the recipe clip"):
        here(
            replace(
                recipe,
                schedule=by_layers(Schedule.named("1f1b")(1, 4), [range(2)]),
                micro_batches=1,
                samples=None,
            )
        )
