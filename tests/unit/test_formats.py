"""The table of formats is torch's; what a histogram of exponents says is lost is what torch's
conversions lose."""

import math

import pytest
import torch

from bigtrain_lab.core import Impossible, Trace
from bigtrain_lab.core.formats import FORMATS, Exponents
from bigtrain_lab.runtime.record.exponents import exponents

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


def test_an_event_holds_all_of_it_and_survives_a_file(tmp_path):
    counted = exponents(torch.tensor([0.0, 3.0, 0.1, math.inf]))
    event = counted.histogram(2, "compute", "layer 1", 5)
    assert (
        Exponents.of(event) == counted
        and len(event.edges) == len(event.counts) + 1
        and sum(event.counts) == 4
    )
    trace = Trace.of([event], "measured", ranks=3)
    assert Trace.load(trace.save(tmp_path / "trace.json")).events == (event,)


@pytest.mark.parametrize(
    "asked, told",
    [
        (lambda: exponents(torch.tensor([1, 2])), "no exponents"),
        (lambda: exponents(torch.ones(1)).shares("fp4"), "choose one of fp32, tf32"),
    ],
)
def test_bad_input_is_a_sentence(asked, told):
    with pytest.raises(Impossible, match=told):
        asked()
