"""Number formats: which powers of two each one reaches, and what part of a tensor it would lose.

    normal      (-1)^s 1.m 2^(e - bias)      e = 1, 2, ...;   bias = 2^(E-1) - 1 for E exponent
                                                              bits, M mantissa bits m
    subnormal   (-1)^s 0.m 2^(1 - bias)      e = 0: evenly spaced down to 2^(1 - bias - M), with
                                             fewer and fewer bits
    rounded     to the nearest, ties to even: at or below half the smallest subnormal a number
                becomes 0

An `Exponents` counts a tensor's values by power of two, so multiplying the loss by S = 2^s only
shifts it by s, and what each format would lose at each S is a sum over bins. A bin [2^k, 2^(k+1))
counts as a whole: exact at the edges of zero and subnormal, but for a value of exactly half the
smallest subnormal (it becomes 0 and is counted subnormal); at the top, a bin overflows when its
least value is above `largest`, so fp16's 65,520 to 65,536 and e4m3's 448 to 512 count as fitting.

Sources: IEEE 754-2019, table 3.5 (fp32, fp16); Kalamkar et al. 2019 (arXiv:1905.12322), table 1
(bf16); NVIDIA A100 whitepaper 2020 (TF32: fp32's exponents, fp16's mantissa); Micikevicius et al.
2022 (arXiv:2209.05433), table 1 (fp8).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from math import frexp
from typing import NamedTuple

from .events import Histogram, Scalar
from .grouped import grouped
from .impossible import refuse_unknown
from .trace import Trace

EXPONENTS = "exponents"  # the kind of a Histogram that holds an Exponents
FLOW = "flow"  # how a Scalar is called that stands for a Station
BELOW, ABOVE = (
    -1075,
    1025,
)  # of every float64: the edges of the bins for zeros and for what is not finite


class Format(NamedTuple):
    """What is larger than `largest` becomes inf; where `infinite` is False there is none (e4m3 gave
    its codes to numbers) and a conversion saturates, to `largest` (torch 2.13, even from inf), or
    makes a nan (earlier ones). Both are counted as overflow.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest: float
    infinite: bool = True

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def highest(self) -> int:
        """log2 of the largest power of two."""
        return frexp(self.largest)[1] - 1

    @property
    def lowest_normal(self) -> int:
        """log2 of the smallest number that has all its bits."""
        return 2 - 2 ** (self.exponent_bits - 1)

    @property
    def lowest(self) -> int:
        """log2 of the smallest subnormal."""
        return self.lowest_normal - self.mantissa_bits


def regular(name: str, exponent_bits: int, mantissa_bits: int) -> Format:
    """With e = all ones kept for inf and nan, as IEEE 754 has it."""
    largest = (2 - 2.0**-mantissa_bits) * 2.0 ** (2 ** (exponent_bits - 1) - 1)
    return Format(name, exponent_bits, mantissa_bits, largest)


FORMATS = {
    each.name: each
    for each in (
        regular("fp32", 8, 23),
        regular("tf32", 8, 10),  # 19 bits, stored in 32
        regular("bf16", 8, 7),
        regular("fp16", 5, 10),
        regular("fp8 e5m2", 5, 2),
        Format("fp8 e4m3", 4, 3, 448.0, infinite=False),
    )
}


class DType(NamedTuple):
    """A format by torch's name, and the bytes of a value."""

    name: str
    itemsize: int


DTYPES = {
    name: DType(name, size)
    for name, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8))
}


class Shares(NamedTuple):
    """What becomes of nonzero finite numbers in a format; the four add up to 1 (to 0 where there
    are no numbers)."""

    zero: float
    subnormal: float
    normal: float
    overflow: float


class Exponents(NamedTuple):
    """counts[i]: values with 2^(first+i) <= |x| < 2^(first+i+1); zeros and what is not finite
    apart."""

    first: int
    counts: tuple[int, ...]
    zeros: int = 0
    not_finite: int = 0

    @property
    def nonzero(self) -> int:
        """Finite values that are not zero."""
        return sum(self.counts)

    def shares(self, format: str | Format, log2_scale: int = 0) -> Shares:
        """Of the nonzero finite values times 2^log2_scale."""
        number = format_named(format)
        lost = dict.fromkeys(Shares._fields, 0)
        for exponent, count in enumerate(self.counts, self.first + log2_scale):
            lost[fate(exponent, number)] += count
        return Shares(**{name: count / (self.nonzero or 1) for name, count in lost.items()})

    def largest_scale(self, format: str | Format) -> int | None:
        """log2 of the largest loss scale at which no bin overflows; None for a tensor of zeros."""
        filled = [exponent for exponent, count in enumerate(self.counts, self.first) if count]
        return format_named(format).highest - filled[-1] if filled else None

    def histogram(self, rank: int, lane: str, name: str, start: int | None) -> Histogram:
        """As an event of a trace: bins of log2 |x|; the zeros below all others, what is not finite
        above."""
        edges = (BELOW, *range(self.first, self.first + len(self.counts) + 1), ABOVE)
        return Histogram(
            rank, lane, EXPONENTS, name, start, edges, (self.zeros, *self.counts, self.not_finite)
        )

    @classmethod
    def of(cls, event: Histogram) -> "Exponents":
        zeros, *counts, not_finite = event.counts
        return cls(int(event.edges[1]), tuple(counts), zeros, not_finite)

    @classmethod
    def merged(cls, several: Iterable["Exponents"]) -> "Exponents":
        """The counts of all the tensors together."""
        several, counts = list(several), Counter()
        for each in several:
            counts.update(dict(enumerate(each.counts, each.first)))
        first = min(counts, default=0)
        bins = range(first, max(counts, default=first - 1) + 1)
        return cls(
            first,
            tuple(counts[exponent] for exponent in bins),
            sum(each.zeros for each in several),
            sum(each.not_finite for each in several),
        )


def fate(exponent: int, number: Format) -> str:
    """Which of the Shares values of [2^exponent, 2^(exponent+1)) belong to."""
    if exponent > number.highest:
        return "overflow"
    if exponent >= number.lowest_normal:
        return "normal"
    return (
        "subnormal" if exponent >= number.lowest - 1 else "zero"
    )  # from half the smallest subnormal on, it rounds up


def format_named(format: str | Format) -> Format:
    if isinstance(format, Format):
        return format
    refuse_unknown("format called", format, FORMATS)
    return FORMATS[format]


# -- what a run reported ---------------------------------------------------------------------------

WEIGHTS, ACTIVATIONS = (
    "weight gradient",
    "activation gradient",
)  # a histogram is called "<one of these> <path of a module or weight>"


def reported(trace: Trace) -> Iterator[tuple[str, str, Exponents]]:
    """(ACTIVATIONS or WEIGHTS, path, counts) of each histogram of gradients, in order."""
    yield from (
        (kind, event.name.removeprefix(kind).strip(), Exponents.of(event))
        for event in trace.where(Histogram, kind=EXPONENTS)
        for kind in (ACTIVATIONS, WEIGHTS)
        if event.name.startswith(kind)
    )


def layers(trace: Trace) -> dict[str, dict[str, Exponents]]:
    """{ACTIVATIONS: {module: counts}, WEIGHTS: {module: counts}} of all that a trace's ranks
    reported, each module's looks and its weights (x.weight, x.bias) together, in the order of first
    report."""
    found = grouped(
        ((kind, path.rpartition(".")[0] or path if kind == WEIGHTS else path), counted)
        for kind, path, counted in reported(trace)
    )
    return {
        kind: {module: Exponents.merged(own) for (of, module), own in found.items() if of == kind}
        for kind in (ACTIVATIONS, WEIGHTS)
    }


def looks(trace: Trace) -> dict[str, list[Exponents]]:
    """{ACTIVATIONS: [counts of the first look, of the second, ...], WEIGHTS: likewise}, each look
    over all modules."""
    found = grouped(((kind, path), counted) for kind, path, counted in reported(trace))
    return {
        kind: [
            Exponents.merged(filter(None, look))
            for look in zip_longest(*(own for (of, _), own in found.items() if of == kind))
        ]
        for kind in (ACTIVATIONS, WEIGHTS)
    }


class Station(NamedTuple):
    """A value on its way through a training step: what it is, how it came from the one before, its
    type ("float16"), its shape."""

    name: str
    how: str
    dtype: str
    shape: tuple[int, ...]

    def label(self, number: int) -> str:
        """The name under which a rank reports it: rank.log(station.label(3), 0)."""
        return " | ".join(
            (f"{FLOW} {number}", self.name, self.how, self.dtype, " x ".join(map(str, self.shape)))
        )

    @classmethod
    def of(cls, label: str) -> "Station":
        _, name, how, dtype, shape = label.split(" | ")
        return cls(name, how, dtype, tuple(int(size) for size in shape.split(" x ") if size))


def stations(trace: Trace) -> list[Station]:
    """Those that a trace's ranks reported, in order."""
    labels = {event.name for event in trace.where(Scalar) if event.name.startswith(f"{FLOW} ")}
    return [Station.of(label) for label in sorted(labels, key=lambda label: int(label.split()[1]))]
