"""The table of formats is torch's; what a histogram of exponents says is lost is what torch's
conversions lose; the microscope draws what histograms say, and the flow what tensors of a step are."""

import math

import pytest
import torch

from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.core.formats import ACTIVATIONS, FORMATS, WEIGHTS, Exponents, layers
from bigtrain_lab.runtime.record.exponents import exponents
from bigtrain_lab.techniques.mixed_precision import LEVELS, DynamicLossScaler, MixedPrecision
from bigtrain_lab.techniques.precision_flow import flow
from bigtrain_lab.view import figures
from bigtrain_lab.view.figures.exponents import LOSSES, SCALES, SHOWN, percent

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e5m2": torch.float8_e5m2,
    "fp8 e4m3": torch.float8_e4m3fn,
}


@pytest.mark.parametrize("name", TORCH)
def test_the_table_is_torch_s(name):
    ours, info = FORMATS[name], torch.finfo(TORCH[name])
    assert (ours.bits, ours.largest) == (info.bits, info.max)
    assert (2.0**ours.lowest_normal, 2.0**-ours.mantissa_bits) == (info.smallest_normal, info.eps)
    sub = torch.tensor(2.0**ours.lowest, dtype=torch.float64)
    assert (
        sub.to(TORCH[name]).double() == sub and (sub / 2).to(TORCH[name]).double() == 0
    )  # the tie goes to the even 0
    assert (sub / 2 * (1 + 2.0**-8)).to(TORCH[name]).double() == sub
    beyond = torch.tensor(float(ours.largest)).double() * 2
    assert beyond.to(TORCH[name]).double() == (math.inf if ours.infinite else ours.largest)


def test_tf32_has_fp32_s_range_and_fp16_s_digits():
    tf32 = FORMATS["tf32"]
    assert (tf32.bits, tf32.lowest_normal, tf32.mantissa_bits) == (19, -126, 10)
    assert tf32.largest == torch.finfo(torch.float32).max - 2.0**127 * (2.0**-10 - 2.0**-23)


def spread(seed=0, count=40_000, low=-60, high=60, dtype=torch.float64):
    """Values over all bins, with the edges of each bin among them."""
    draw = torch.Generator().manual_seed(seed)
    powers = torch.randint(low, high, (count,), generator=draw)
    mantissas = 1 + torch.rand(count, generator=draw, dtype=torch.float64)
    mantissas[::5] = 1
    signs = torch.randint(0, 2, (count,), generator=draw) * 2 - 1
    return (signs * torch.ldexp(mantissas, powers)).to(dtype)


@pytest.mark.parametrize("log2_scale", [0, 7, 20, -11])
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8 e5m2", "fp8 e4m3"])
def test_shares_are_what_torch_s_conversion_does(name, log2_scale):
    number, dtype = FORMATS[name], TORCH[name]
    size = torch.ldexp(spread(low=-30, high=30), torch.tensor(log2_scale)).abs()
    # The bins' stated exceptions, at their two ends: half the smallest subnormal itself, and the
    # top bin's part that rounds up.
    size = size[
        (size != 2.0**number.lowest / 2)
        & ((size <= number.largest) | (size >= 2.0 ** (number.highest + 1)))
    ]
    cast = size.float().to(dtype).float()
    told = exponents(torch.ldexp(size, torch.tensor(-log2_scale))).shares(name, log2_scale)
    over = cast.isinf() if number.infinite else size > number.largest  # which are clipped
    lost = [
        cast == 0,
        (cast != 0) & (size < 2.0**number.lowest_normal),
        (size >= 2.0**number.lowest_normal) & ~over,
        over,
    ]
    assert told == pytest.approx([part.double().mean().item() for part in lost], abs=1e-12) and sum(
        told
    ) == pytest.approx(1)
    assert (
        told.zero > 0 if name != "bf16" and log2_scale <= 0 else told.overflow > 0 or name == "bf16"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_value_is_in_the_bin_of_its_power_of_two(dtype):
    x = spread(low=-14, high=15, count=5000, dtype=dtype)
    counted = exponents(x)
    for power, count in enumerate(counted.counts, counted.first):
        assert (
            count
            == ((x.abs().double() >= 2.0**power) & (x.abs().double() < 2.0 ** (power + 1))).sum()
        )
    assert counted.nonzero == 5000


def test_subnormals_zeros_and_what_is_not_finite():
    counted = exponents(
        torch.tensor([2.0**-149, -(2.0**-130), 0.0, -0.0, math.inf, -math.inf, math.nan, 1.0])
    )
    assert (
        counted.first,
        counted.counts[0],
        counted.counts[-1],
        counted.nonzero,
        counted.zeros,
        counted.not_finite,
    ) == (-149, 1, 1, 3, 2, 3)
    assert exponents(torch.zeros(3)) == Exponents(0, (), 3, 0) and exponents(
        torch.empty(0)
    ) == Exponents(0, ())
    assert (
        exponents(torch.zeros(3)).shares("fp16") == (0, 0, 0, 0)
        and exponents(torch.zeros(3)).largest_scale("fp16") is None
    )


def test_merged_is_the_count_of_all():
    parts = (
        spread(count=3000, low=-9, high=4),
        torch.zeros(5),
        spread(seed=1, count=2000, low=10, high=12),
        torch.tensor([math.nan]),
    )
    assert Exponents.merged(map(exponents, parts)) == exponents(
        torch.cat([p.double() for p in parts])
    )
    assert Exponents.merged([]).nonzero == 0


def test_the_largest_scale_is_the_last_at_which_nothing_overflows():
    x = torch.tensor([0.3, 5.0, 1e-6])
    scale = exponents(x).largest_scale("fp16")
    assert (x * 2.0**scale).half().isfinite().all() and not (
        x * 2.0 ** (scale + 1)
    ).half().isfinite().all()


def test_an_event_holds_all_of_it():
    counted = exponents(torch.tensor([0.0, 3.0, 0.1, math.inf]))
    event = counted.histogram(2, "compute", "layer 1", 5)
    assert (
        Exponents.of(event) == counted
        and len(event.edges) == len(event.counts) + 1
        and sum(event.counts) == 4
    )


@pytest.mark.parametrize(
    "asked, told",
    [
        (lambda: exponents(torch.tensor([1, 2])), "no exponents"),
        (lambda: exponents(torch.ones(1)).shares("fp4"), "choose one of fp32, tf32"),
        (lambda: figures.exponents(Trace((), "predicted")), "no histograms of gradients"),
        (lambda: figures.precision_flow(Trace((), "predicted")), "no stations"),
    ],
)
def test_bad_input_is_a_sentence(asked, told):
    with pytest.raises(Impossible, match=told):
        asked()


# -- the picture, at every position of its slider --------------------------------------------------

SMALL, LARGE = torch.full((4,), 1.5 * 2.0**-27), torch.full((12,), 2.0**-3)


def looks():
    """Two looks at a model of two blocks; activations are reported from the end, as a backward
    meets them."""
    events = [
        exponents(tensor).histogram(0, "compute", f"{kind} {path}", look)
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
    found = layers(looks())
    assert list(found[ACTIVATIONS]) == ["b.out", "b", "a", "a.in"] and found[ACTIVATIONS][
        "b"
    ] == exponents(SMALL.repeat(2))
    assert found[WEIGHTS] == {
        "a.in": exponents(torch.cat([LARGE, SMALL]).repeat(2)),
        "b.out": exponents(torch.zeros(6)),
        "scale": exponents(LARGE.repeat(2)),
    }


def test_rows_are_the_model_s_order_and_titles_count_the_zeros():
    figure = figures.exponents(looks())
    left, right = (each for each in figure.data if each.type == "heatmap")
    assert list(left.y) == list(right.y) == ["a.in", "a", "b.out", "b", "scale"]
    said = " ".join(a.text for a in figure.layout.annotations if "gradients:" in a.text)
    assert "activation gradients: 64" in said and f"{percent(6 / 62)} of them 0" in said


def test_each_position_of_the_slider_tells_the_shares_at_its_scale():
    figure = figures.exponents(looks())
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
