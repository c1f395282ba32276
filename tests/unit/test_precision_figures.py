"""The microscope draws what the histograms say, at every position of its slider; the flow what the
tensors of a step are."""

import pytest
import torch

from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.core.formats import ACTIVATIONS, WEIGHTS, layers
from bigtrain_lab.runtime.record.exponents import exponents
from bigtrain_lab.techniques.mixed_precision import LEVELS, DynamicLossScaler, MixedPrecision
from bigtrain_lab.techniques.precision_flow import flow
from bigtrain_lab.view import figures
from bigtrain_lab.view.figures.exponents import LOSSES, SCALES, SHOWN, percent

SMALL, LARGE = torch.full((4,), 1.5 * 2.0**-27), torch.full((12,), 2.0**-3)


def report(at, kind, path, tensor):
    return exponents(tensor).histogram(0, "compute", f"{kind} {path}", at)


def trace():
    """Two looks at a model of two blocks; activations are reported from the end, as a backward
    meets them."""
    events = [
        report(look, kind, path, tensor)
        for look in range(2)
        for kind, path, tensor in (
            (ACTIVATIONS, "b.out", LARGE),
            (ACTIVATIONS, "b", SMALL),
            (ACTIVATIONS, "a", LARGE),
            (ACTIVATIONS, "a.in", SMALL),
            (WEIGHTS, "a.in.weight", LARGE),
            (WEIGHTS, "a.in.bias", SMALL),
            (WEIGHTS, "b.out.weight", torch.zeros(3)),
            (WEIGHTS, "scale", LARGE),
        )
    ]
    return Trace.of(events, "measured", settings={"level": "fp32"})


def test_looks_and_the_weights_of_a_module_are_counted_together():
    found = layers(trace())
    assert list(found[ACTIVATIONS]) == ["b.out", "b", "a", "a.in"] and found[ACTIVATIONS][
        "b"
    ] == exponents(SMALL.repeat(2))
    assert found[WEIGHTS] == {
        "a.in": exponents(torch.cat([LARGE, SMALL]).repeat(2)),
        "b.out": exponents(torch.zeros(6)),
        "scale": exponents(LARGE.repeat(2)),
    }


def test_rows_are_the_model_s_order_and_titles_count_the_zeros():
    figure = figures.exponents(trace())
    left, right = (each for each in figure.data if each.type == "heatmap")
    assert list(left.y) == list(right.y) == ["a.in", "a", "b.out", "b", "scale"]
    said = " ".join(a.text for a in figure.layout.annotations if "gradients:" in a.text)
    assert "activation gradients: 64" in said and f"{percent(6 / 62)} of them 0" in said
    with pytest.raises(Impossible, match="no histograms of gradients"):
        figures.exponents(Trace((), "predicted"))


def test_each_position_of_the_slider_tells_the_shares_at_its_scale():
    figure = figures.exponents(trace())
    (slider,) = figure.layout.sliders
    places = [i for i, a in enumerate(figure.layout.annotations) if a.name == LOSSES]
    assert [step.label for step in slider.steps] == [f"{2**s:,}" for s in SCALES] and len(
        places
    ) == 2 * len(SHOWN)
    for s, step in zip(SCALES, slider.steps, strict=True):
        _, written, _ = step.args
        x = torch.cat([LARGE, SMALL] * 4).double() * 2.0**s
        lost = percent((x.half() == 0).double().mean().item())
        assert written[f"annotations[{places[0]}].text"].startswith(f"<b>fp16</b>  {lost} to 0, ")
        assert set(written) == {f"annotations[{i}].text" for i in places}
    drawn = figure.layout.annotations[places[0]].text
    assert drawn == slider.steps[0].args[1][f"annotations[{places[0]}].text"]


# -- the flow of a step ----------------------------------------------------------------------------


def flow_at(level):
    torch.manual_seed(0)
    scaler = (
        DynamicLossScaler(1024.0, half_gradients=not LEVELS[level].masters)
        if LEVELS[level].scaling
        else None
    )
    mp = MixedPrecision(level, scaler)
    model = mp.prepare(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    )
    optimizer = torch.optim.Adam(mp.parameters())
    ids = torch.eye(8).to(next(model.parameters()).dtype)
    before = model[0].weight.clone()
    told = flow(
        mp,
        optimizer,
        lambda: torch.nn.functional.cross_entropy(model(ids), torch.arange(8) % 4),
        "0.weight",
    )
    assert not torch.equal(model[0].weight, before), "it is a real step"
    return told


WHOLE = [
    ("master weight", "float32", (16, 8)),
    ("weight", "float16", (16, 8)),
    ("output of its layer", "float16", (8, 16)),
    ("loss", "float32", ()),
    ("scaled loss", "float32", ()),
    ("gradient of the output", "float16", (8, 16)),
    ("gradient of the weight", "float16", (16, 8)),
    ("true gradient", "float32", (16, 8)),
    ("optimizer's exp_avg", "float32", (16, 8)),
]


def test_the_flow_is_read_from_the_tensors_of_a_step():
    assert [(s.name, s.dtype, s.shape) for s in flow_at("fp16")] == WHOLE
    plain = [n for n, *_ in WHOLE if n not in ("master weight", "scaled loss", "true gradient")]
    assert [(s.name, s.dtype) for s in flow_at("fp32")] == [(n, "float32") for n in plain]


def test_the_flow_is_drawn_box_by_box_and_survives_a_trace():
    told = flow_at("fp16")
    scalars = [Scalar(0, "compute", "scalar", s.label(i), 0, 0.0) for i, s in enumerate(told)]
    drawn = [figures.precision_flow(each) for each in (told, Trace.of(scalars, "measured"))]
    assert drawn[0] == drawn[1] and len(drawn[0].layout.shapes) == len(told)
    texts = [a.text for a in drawn[0].layout.annotations]
    assert "weight<br><b>float16</b><br>16 × 8" in texts and "times 1,024" in texts
    with pytest.raises(Impossible, match="no stations"):
        figures.precision_flow(Trace((), "predicted"))


def test_a_weight_that_no_gradient_reaches_is_named():
    mp = MixedPrecision("bf16")
    model = mp.prepare(
        torch.nn.ModuleDict(
            {
                "a": torch.nn.Linear(2, 2),
                "b": torch.nn.Linear(2, 2).requires_grad_(False),
                "c": torch.nn.Linear(2, 2),
            }
        )
    )
    optimizer = torch.optim.SGD(mp.parameters(), lr=0.1)
    for name, told in (
        ("b.weight", "b.weight is frozen.*choose one of a.weight"),
        ("c.weight", "does not depend on c.weight"),
    ):
        with pytest.raises(Impossible, match=told):
            flow(mp, optimizer, lambda: model["a"](torch.ones(1, 2)).sum(), name)
