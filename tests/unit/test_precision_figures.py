"""The microscope draws what the histograms say, at every position of its slider; the flow what the
tensors of a step are."""

import pytest
import torch

from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.core.formats import ACTIVATIONS, WEIGHTS, Station, layers, looks
from bigtrain_lab.runtime.record.exponents import exponents
from bigtrain_lab.techniques.mixed_precision import LEVELS, DynamicLossScaler, MixedPrecision
from bigtrain_lab.techniques.precision_flow import flow
from bigtrain_lab.view import figures
from bigtrain_lab.view.figures.exponents import LOSSES, SCALES, SHOWN, losses, percent, told
from bigtrain_lab.view.figures.levels import COLOURS, levels

SMALL, LARGE = torch.full((4,), 1.5 * 2.0**-27), torch.full((12,), 2.0**-3)


def report(at, kind, path, tensor):
    return exponents(tensor).histogram(0, "compute", f"{kind} {path}", at)


def trace():
    """Two looks at a model of two blocks; activations are reported from the end, as a backward
    meets them."""
    events = []
    for look in range(2):
        events += [
            report(look, ACTIVATIONS, path, tensor)
            for path, tensor in (("b.out", LARGE), ("b", SMALL), ("a", LARGE), ("a.in", SMALL))
        ]
        events += [
            report(look, WEIGHTS, path, tensor)
            for path, tensor in (
                ("a.in.weight", LARGE),
                ("a.in.bias", SMALL),
                ("b.out.weight", torch.zeros(3)),
                ("scale", LARGE),
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
    titles = [a.text for a in figure.layout.annotations if "gradients:" in a.text]
    assert titles == [
        "activation gradients: 64<br>0% of them 0 from the start",
        f"weight gradients: 62<br>{percent(6 / 62)} of them 0 from the start",
    ]
    assert figure.layout.title.text == "measured: gradients by power of two, computed at level fp32"


def test_each_position_of_the_slider_tells_the_shares_at_its_scale():
    figure = figures.exponents(trace())
    (slider,) = figure.layout.sliders
    places = [i for i, a in enumerate(figure.layout.annotations) if a.name == LOSSES]
    assert [step.label for step in slider.steps] == [f"{2**s:,}" for s in SCALES] and len(
        places
    ) == 2 * len(SHOWN)
    starts = [each.x0 for each in figure.data if each.type == "heatmap"]
    for s, step in zip(SCALES, slider.steps, strict=True):
        moved, written, traces = step.args
        assert [figure.data[i].type for i in traces] == ["heatmap"] * 2 and moved["x0"] == [
            x + s for x in starts
        ]
        x = torch.cat([LARGE, SMALL] * 4).double() * 2.0**s
        lost = (x.half() == 0).double().mean().item()
        assert written[f"annotations[{places[0]}].text"].startswith(
            f"<b>fp16</b>  {percent(lost)} to 0, "
        )
        assert set(written) == {f"annotations[{i}].text" for i in places}
    assert (
        figure.layout.annotations[places[0]].text
        == slider.steps[0].args[1][f"annotations[{places[0]}].text"]
    )
    assert (
        "25.0% to 0" in figure.layout.annotations[places[0]].text
        and "0% to 0, 25.0% subnormal" in slider.steps[7].args[1][f"annotations[{places[0]}].text"]
    )


def test_a_layer_s_bins_are_where_its_gradients_are():
    left = next(each for each in figures.exponents(trace()).data if each.type == "heatmap")
    row = left.z[list(left.y).index("a")]
    assert [left.x0 + i * left.dx for i, share in enumerate(row) if share] == [-2.5] and max(
        share or 0 for share in row
    ) == 1


def test_one_kind_alone_and_none_at_all():
    assert (
        len(
            [
                d
                for d in figures.exponents(trace().where(name=f"{WEIGHTS} scale")).data
                if d.type == "heatmap"
            ]
        )
        == 1
    )
    assert figures.exponents(Trace.of([report(0, WEIGHTS, "w", torch.zeros(2))], "measured")).data
    with pytest.raises(Impossible, match="no histograms of gradients"):
        figures.exponents(Trace((), "predicted"))


@pytest.mark.parametrize("log2_scale", [0, 10])
def test_what_is_inf_already_counts_as_lost(log2_scale):
    """Of 8 gradients 1 is 0, 4 are inf or nan, 2 overflow from a scale of 2^10 on, 1 is fine at
    each."""
    counted = exponents(
        torch.tensor([0, torch.inf, torch.inf, -torch.inf, torch.nan, 500.0, 500.0, 2.0**-8])
    )
    lines = losses(counted, log2_scale)
    share = percent((4 + 2 * (log2_scale == 10)) / 7)
    assert lines[SHOWN.index("fp16")] == f"<b>fp16</b>  0% to 0, 0% subnormal, {share} inf or nan"
    assert lines[SHOWN.index("fp8 e4m3")].endswith("clipped, inf or nan")
    assert (
        told("weight gradient", counted)
        == "weight gradients: 8<br>12.5% of them 0 from the start, 50.0% inf or nan"
    )
    assert losses(exponents(torch.full((2,), torch.inf)), log2_scale)[0].endswith("100% inf or nan")


def test_percent_never_rounds_to_nothing_or_to_all():
    assert [percent(x) for x in (0, 1e-6, 5e-4, 0.067, 0.99999, 1)] == [
        "0%",
        "<0.01%",
        "0.05%",
        "6.7%",
        "99.99%",
        "100%",
    ]


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
    assert [(s.name, s.dtype) for s in flow_at("bf16")] == [
        (n, d.replace("float16", "bfloat16")) for n, d, _ in WHOLE if n != "scaled loss"
    ]
    plain = [n for n, *_ in WHOLE if n not in ("master weight", "scaled loss", "true gradient")]
    assert [(s.name, s.dtype) for s in flow_at("fp32")] == [(n, "float32") for n in plain]
    assert [(s.name, s.dtype) for s in flow_at("fp16-pure")] == [(n, "float16") for n in plain]
    assert [s.dtype for s in flow_at("fp16-no-masters")][-2:] == ["float16", "float16"]


def test_the_flow_is_drawn_box_by_box_and_survives_a_trace():
    told = flow_at("fp16")
    assert [Station.of(s.label(i)) for i, s in enumerate(told)] == list(told)
    reported = Trace.of(
        [Scalar(0, "compute", "scalar", s.label(i), 0, 0.0) for i, s in enumerate(told)], "measured"
    )
    drawn = [figures.precision_flow(each) for each in (told, reported)]
    assert drawn[0] == drawn[1] and len(drawn[0].layout.shapes) == len(told)
    texts = [a.text for a in drawn[0].layout.annotations]
    assert (
        "weight<br><b>float16</b><br>16 × 8" in texts
        and "times 1,024" in texts
        and "to float32, divided" in texts
        and "step" in texts
    )
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
    with pytest.raises(Impossible, match="b.weight is frozen.*choose one of a.weight"):
        flow(mp, optimizer, lambda: model["a"](torch.ones(1, 2)).sum(), "b.weight")
    with pytest.raises(Impossible, match="does not depend on c.weight"):
        flow(mp, optimizer, lambda: model["a"](torch.ones(1, 2)).sum(), "c.weight")


# -- as training goes ------------------------------------------------------------------------------


def test_each_look_is_a_point_and_each_scale_a_position():
    events = [
        *trace().events,
        *(
            report(2, kind, path, SMALL)
            for kind, path in ((ACTIVATIONS, "b"), (WEIGHTS, "a.in.weight"))
        ),
    ]
    training = Trace.of(events, "measured", settings={"every": 10})
    found = looks(training)
    assert [each.nonzero for each in found[ACTIVATIONS]] == [32, 32, 4] and [
        each.zeros for each in found[WEIGHTS]
    ] == [3, 3, 0]
    figure = figures.underflow(training)
    left = next(line for line in figure.data if line.name == "fp16")
    assert list(left.x) == [0, 10, 20] and list(left.y) == [0.25, 0.25, 1]
    (slider,) = figure.layout.sliders
    for s, step in zip(SCALES, slider.steps, strict=True):
        change, traces = step.args
        assert list(traces) == list(range(2 * len(SHOWN))) and change["y"][SHOWN.index("fp16")][
            2
        ] == float((SMALL[0] * 2.0**s).half() == 0)
    assert (
        "fp16 zeroes 100% of activation gradients and 100% of weight gradients"
        in figure.layout.title.text
    )
    assert figure.layout.yaxis.range[1] > 1 and not any(
        "nothing becomes 0" in a.text for a in figure.layout.annotations
    )
    with pytest.raises(Impossible, match="no histograms"):
        figures.underflow(Trace((), "predicted"))


@pytest.mark.parametrize("lost,top", [(0, 1), (1, 0.115), (5, 0.575)])
def test_the_axis_reaches_the_most_that_any_scale_loses(lost, top):
    values = torch.cat(
        [torch.full((lost,), 2.0**-27), torch.ones(10 - lost)]
    )  # 2^-27 is 0 in all but bf16
    figure = figures.underflow(Trace.of([report(0, WEIGHTS, "w", values)], "measured"))
    assert figure.layout.yaxis.range[1] == pytest.approx(top)
    assert any("nothing becomes 0" in a.text for a in figure.layout.annotations) == (not lost)


@pytest.mark.parametrize("draw", [figures.exponents, figures.underflow])
def test_the_slider_says_that_gradients_of_a_scaled_loss_hold_its_scale(draw):
    plain = trace()
    scaled = Trace.of(
        [*plain.events, Scalar(0, "compute", "scalar", "loss scale", 0, 8192.0)], "measured"
    )
    assert [draw(t).layout.sliders[0].currentvalue.prefix for t in (plain, scaled)] == [
        "loss scale ",
        "the run's own loss scale, which these gradients hold, times ",
    ]


# -- levels side by side ---------------------------------------------------------------------------


def test_each_level_learns_in_a_chart_of_its_own_upon_the_first_one():
    sinking = [3 - 2.9 * step / 40 for step in range(40)]
    losses = {
        "fp32": sinking,
        "bf16": [x + 0.01 for x in sinking],
        "broken": [3.0] + [float("nan")] * 39,
    }
    figure = levels(
        Trace.of(
            [Scalar(0, "compute", "loss", "loss", step, loss) for step, loss in enumerate(values)],
            "modelled",
            settings={"level": name, "hardware": "a100-nvlink"},
        )
        for name, values in losses.items()
    )
    charts = {}
    for line in (each for each in figure.data if each.type == "scatter"):
        charts.setdefault(line.xaxis, []).append(line)
    own, first = [lines[-1] for lines in charts.values()], charts["x"][0]
    assert [line.name for line in own] == list(losses) and [
        len(lines) for lines in charts.values()
    ] == [1, 2, 2]
    assert all(
        lines[0].y == first.y and lines[0].line.width > lines[1].line.width
        for lines in list(charts.values())[1:]
    )
    assert (
        len({line.yaxis for line in own}) == 3
        and figure.layout.yaxis2.matches == figure.layout.yaxis3.matches == "y"
    )
    texts = [each.text for each in figure.layout.annotations]
    assert [name for name in losses if any("✕" in text and name in text for text in texts)] == [
        "broken"
    ]
    assert sum("nan from<br>step 2 on" in text for text in texts) == 1 and len(own[2].y) == 1
    assert (
        "modelled" in figure.layout.title.subtitle.text
        and "a100-nvlink" in figure.layout.title.subtitle.text
    )
    assert "#F0E442" not in COLOURS and len(set(COLOURS)) == 7
