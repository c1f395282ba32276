"""The experiment checkpoint: what it predicts for a plan, what a real run then holds and does, and
how deep a model fits."""

from math import log10

import pytest
import torch

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments.checkpoint import Checkpoint
from bigtrain_lab.experiments.depths import deepest, within
from bigtrain_lab.models import GPT, GPTConfig, Noise
from bigtrain_lab.models.chains import UnevenMLP, gpt_layers, gpt_weights, mlp_layers, mlp_weights
from bigtrain_lab.order.recompute.plan import Recompute, advances, peak_bytes
from bigtrain_lab.order.recompute.plans.selective import selective_share, transformer_bytes
from bigtrain_lab.techniques.checkpoint import selective, weigh
from bigtrain_lab.view import figures
from bigtrain_lab.view.figures import depths
from tests.unit.followed import first_difference

SMALL = {"layers": 6, "width": 16, "heads": 2, "sequence": 8, "rows": 2, "budget": 45}
RUNS = [{"plan": "optimal", "steps": 2}, {"plan": "selective"}]
SLOW = [
    {"plan": "keep-all"},
    {"plan": "keep-none", "model": "mlp", "dropout": 0.0},
    {"plan": "sqrt"},
    {"plan": "halving", "optimizer": "sgd", "hardware": "rtx3090-pcie"},
    {"plan": "revolve", "model": "mlp", "budget": 80, "dtype": "float64"},
    {"plan": "every-k", "k": 4, "model": "mlp", "dropout": 0.0, "optimizer": "momentum"},
    {"plan": "optimal", "model": "mlp", "steps": 2, "budget": 60},
]


def held_to_its_prediction(settings, directory):
    asked = Checkpoint(**{**SMALL, **settings})
    run = asked.run(directory=directory)
    run.wait()
    predicted, modelled, measured = asked.predict(), run.trace("modelled"), run.trace("measured")
    assert (
        clocks_differ(predicted, modelled) == [] and first_difference(predicted, modelled) is None
    )
    for quantity in asked.quantities:
        if quantity.exact and quantity.of(modelled) is not None:
            assert quantity.of(predicted) == quantity.of(modelled), quantity.name
    plan = advances(asked.ops), peak_bytes(asked.ops, asked.chain)
    told = {quantity.name: quantity.of(measured) for quantity in asked.quantities}
    assert (told["forwards run again, a step"], told["saved activations, peak"]) == plan
    reference = asked.reference()
    assert run.result.keys() == reference.keys()
    assert all((run.result[name] == reference[name]).all() for name in reference), (
        "the weights are not those of plain training, bit for bit"
    )


@pytest.mark.parametrize("settings", RUNS, ids=lambda s: " ".join(map(str, s.values())))
def test_a_run_is_its_prediction_and_its_weights_are_those_of_plain_training(settings, tmp_path):
    held_to_its_prediction(settings, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("settings", SLOW, ids=lambda s: " ".join(map(str, s.values())))
def test_every_other_plan_too(settings, tmp_path):
    assert {s["plan"] for s in RUNS + SLOW} == set(Recompute.all())
    held_to_its_prediction(settings, tmp_path / "run")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("inside", [None, selective])
def test_what_layers_weigh_from_shapes_is_what_they_weigh(dropout, inside):
    """`weigh` does not know that ids and targets are the caller's: it counts both."""
    config, noise = (
        GPTConfig(layers=2, width=16, heads=2, sequence=8, dropout=dropout),
        Noise(0, 0, 0),
    )
    ids = torch.randint(0, 256, (3, 8))
    found, chain = (
        weigh(gpt_layers(GPT(config), noise, ids.clone(), inside), ids),
        gpt_weights(config, 3, inside)[0],
    )
    assert found.states == (ids.nbytes, *chain.states[1:])
    assert found.saved == (*chain.saved[:-1], chain.saved[-1] + ids.nbytes)
    assert found[4:] == chain[4:]
    x, targets = torch.randn(3, 16), torch.randn(3, 16)
    found, chain = (
        weigh(mlp_layers(UnevenMLP(9, 16, dropout), noise, targets), x),
        mlp_weights(9, 16, 3, dropout, torch.float32)[0],
    )
    assert found.states == (x.nbytes, *chain.states[1:])
    assert (
        found.saved == (*chain.saved[:-1], chain.saved[-1] + targets.nbytes)
        and found[4:] == chain[4:]
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_selective_makes_again_is_attention_s_square_without_its_last_product(dropout):
    """B rows, H heads, S tokens: scores 2 B S^2 D flops; scaled, masked, softmax: read and written
    once each, the mask made (4 S^2)."""
    config = GPTConfig(layers=1, width=16, heads=2, sequence=8, dropout=dropout)
    (_, forwards, plain), (_, same, longer) = (
        gpt_weights(config, 3, inside) for inside in (None, selective)
    )
    scores = 3 * 2 * 8 * 8
    moved = 4 * (6 * scores + 4 * 8 * 8) + (scores * (4 * 4 + 2) if dropout else 0)
    assert forwards == same and plain[0] == longer[0] and plain[2] == longer[2]
    assert (longer[1].flops - plain[1].flops, longer[1].moved_bytes - plain[1].moved_bytes) == (
        2 * 3 * 8 * 8 * 16,
        moved,
    )


def test_four_times_deeper_in_the_same_memory():
    base = Checkpoint(plan="keep-all", layers=4, rows=16, sequence=64, steps=2)
    memory = base.simulated().peak_bytes(0)
    assert deepest(base, "keep-all", memory).layers == 4
    assert deepest(base, "selective", memory).layers == 8
    assert deepest(base, "sqrt", memory).layers == 11
    assert deepest(base, "halving", memory).layers == 64
    chosen = within(base, "optimal", 16, memory)
    assert (
        chosen.simulated().peak_bytes(0) <= memory
        and round(chosen.work(chosen.simulated()), 2) == 1.24
    )
    assert within(base, "sqrt", 12, memory) is None
    with pytest.raises(
        Impossible, match="No model of 2 layers fits into 1,000,000 bytes by keep-all"
    ):
        deepest(base, "keep-all", 10**6)
    drawn = depths.drawing(
        {"keep-all": (4, 1.0), "sqrt": (11, 1.2)}, [(4, 1.0), (16, 1.24)], "20.3 MB"
    )
    assert (
        drawn.data[0].x == (4, 16)
        and drawn.data[1].text == ("<b>keep-all</b>", "<b>sqrt</b>")
        and not drawn.layout.annotations
    )
    assert drawn.layout.yaxis.type == "linear"
    drawn = depths.drawing(
        {"every-k": (10, 1.2), "sqrt": (11, 1.2)}, [(4, 1.0), (16, 1.24)], "20.3 MB"
    )
    assert drawn.data[1].textposition == (
        "top left",
        "top right",
    )  # names of neighbours do not meet
    drawn = depths.drawing(
        {"keep-all": (4, 1.0), "keep-none": (16, 10.0)}, [(4, 1.0), (16, 1.24)], "20.3 MB"
    )
    assert (
        drawn.data[1].text[1] == "<b>keep-none</b><br>16 or more"
        and "16 layers or more" in drawn.data[1].hovertext[1]
    )
    (arrow,) = drawn.layout.annotations  # of the one that may go deeper
    assert drawn.layout.yaxis.type == "log" and (arrow.x, arrow.y) == (log10(16), 1)


def test_the_published_bytes_of_a_transformer():
    """Korthikanti et al. 2022, s = h = 2048, a = 16, 24 layers, one row."""
    GB = [
        round(transformer_bytes(2048, 1, 2048, 16, 24, how) / 1e9, 2)
        for how in ("none", "selective", "full")
    ]
    assert (
        GB == [11.48, 3.42, 0.20] and round(transformer_bytes(2048, 1, 2048, 16) / 1e9, 2) == 0.48
    )
    assert round(selective_share(2048, 2048), 3) == 0.048


def test_it_says_what_a_plan_does():
    asked = Checkpoint(plan="keep-none", layers=4, dropout=0.0)
    said = " ".join(asked.explain(asked.predict()))
    assert (
        "runs 15 forwards again: 1.83 times the work" in said
        and "Layer 0 runs 6 times: 5 advances, and the pass" in said
    )
    asked = asked.replace(plan="optimal")
    assert "The next better plan needs at most" in " ".join(asked.explain(asked.predict()))
    assert "5 layers" in Checkpoint(model="mlp", layers=5, budget=30).describe()
    assert Checkpoint.idle_settings(asked.model_dump()) >= {
        "k"
    } and "budget" in Checkpoint.idle_settings({**asked.model_dump(), "plan": "sqrt"})


def test_a_device_that_is_too_small_is_told_with_what_would_help():
    asked = Checkpoint(plan="keep-all", layers=4, memory_mb=1)
    said, *_ = asked.explain(asked.predict())
    assert "The plan optimal would need less (activations down to 419.8 kB), or fewer rows" in said


def test_the_picture_tells_what_a_plan_takes_beyond_the_line():
    asked = Checkpoint(plan="sqrt", layers=64)
    figure = figures.figure("budgets", asked.predict())
    (gap,) = (line for line in figure.data if line.name == "memory above the line's")
    memory, work = asked.facts["plans"]["sqrt"]
    at = gap.x.index(memory)
    least = min(m for m, w in asked.facts["frontier"] if w <= work)
    assert (
        gap.y[at - 1] == gap.y[at] == work
        and gap.x[at - 1] == pytest.approx(least)
        and f"<b>+{memory / least - 1:.0%}</b>" in {a.text for a in figure.layout.annotations}
    )
    assert any(
        "<b>sqrt</b><br>" in told and "more memory than the line" in told
        for told in figure.data[1].hovertext
    )
    assert (
        not any("selective" in text for text in figure.data[1].text)
        and figure.data[0].name == "optimum of the recursion"
    )
    assert [line.text for line in figure.data if line.name == "inside layers"] == [
        ("<b>selective</b> (inside layers)",)
    ]


def test_the_picture_has_every_plan_and_the_chosen_one():
    asked = Checkpoint(**SMALL)
    line, points, chosen, *_ = figures.figure("budgets", asked.predict()).data
    assert line.y[-1] == 1 and list(line.x) == sorted(line.x) and line.x[-1] == asked.everything
    assert (
        len(points.text) >= 5
        and chosen.x[0] == peak_bytes(asked.ops, asked.chain) <= asked.budget_bytes
    )
    with pytest.raises(Impossible, match="knows no recompute plans"):
        figures.figure("budgets", asked.simulated())


def test_what_cannot_be_is_said():
    for settings, why in [
        (
            {"budget": 1},
            (
                r"A budget of .* is below the smallest peak that any plan reaches, .*: take at"
                r" least 6.5% of keep-all"
            ),
        ),
        ({"plan": "nix"}, "plan is 'nix': choose one of keep-all, keep-none"),
        ({"plan": "selective", "model": "mlp"}, "an MLP has none"),
        ({"heads": 3}, "heads"),
    ]:
        with pytest.raises(Impossible, match=why):
            Checkpoint(**settings)


def test_a_limit_that_is_near_is_told_to_hold_inside_actions_too():
    """The prediction of a long plan, which knows actions' ends alone; far from the limit, or above
    it, that is no matter."""
    asked = Checkpoint(**{**SMALL, "layers": 24, "plan": "keep-none"})
    most = asked.predict().peak_bytes(0)

    def told(limit_bytes):
        near = asked.replace(memory_mb=limit_bytes / 1e6)
        return [
            said for said in near.explain(near.predict()) if "limited at the very operator" in said
        ]

    assert [len(told(limit)) for limit in (most - 1, most, 2 * most - 1, 2 * most)] == [0, 1, 1, 0]
