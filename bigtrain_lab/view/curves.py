"""What a run reports while it learns: small charts side by side, a line over its time each; what
is pinned is dashed beneath it."""

from collections.abc import Iterable
from html import escape
from math import ceil, floor, isfinite, log10

from ..core import Scalar, Trace, number
from ..order import ACCURACY
from .words import axis_unit

LEAST, HIGH = 300, 286  # of a chart, in pixels
LEFT, TOP, BOTTOM = 64, 26, 24
FEW, MOST = 20, 600  # points of a line that are dots too; more than MOST cannot be told apart


def curves(
    titles: dict[str, str], trace: Trace, pinned: Trace | None = None, width: int = 900
) -> str:
    """A chart for each of these names of which the trace tells, with its title; together as wide as
    this, in pixels."""
    names = {*reported(trace, titles), *reported(pinned, titles)}
    wide = max(LEAST, width // max(1, len(names)) - 24)
    drawn = "".join(
        chart(name, title, trace, pinned, wide) for name, title in titles.items() if name in names
    )
    told = "Dashed: what is pinned. " * bool(reported(pinned, names))
    told += "The curves are drawn while a run learns: press Run." * (not reported(trace, names))
    return f'<div class="btl-curves">{drawn}{f"<p>{told}</p>" * bool(told)}</div>'


def reported(trace: Trace | None, names: Iterable[str]) -> list[str]:
    """Those of these names of which the trace tells."""
    return [name for name in names if trace is not None and trace.where(Scalar, name=name)]


def points(trace: Trace, name: str) -> list[tuple[float, float]]:
    """(time since the start, value) of all that ranks report by this name, in time; the last value
    holds until the end of the last update."""
    told = [(each.start, each.value) for each in trace.where(Scalar, name=name)]
    ends = [(max(tick, trace.step_ends[-1]), value) for tick, value in told[-1:]]
    begin, (_, factor) = trace.events[0].start, axis_unit(trace)
    return [
        (trace.units(tick - begin) * factor, value)
        for tick, value in told[:: 1 + len(told) // MOST] + ends
    ]


def chart(name: str, title: str, trace: Trace, pinned: Trace | None, wide: int) -> str:
    own, other = points(trace, name), points(pinned, name) if pinned else []
    seen = [(x, y) for x, y in own + other if isfinite(y)] or [(0.0, 0.0)]
    right = max(x for x, _ in seen) or 1
    low, high = min(y for _, y in seen), max(y for _, y in seen)
    if high == low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    low = 0 if 0 < low < high / 2 else low
    if name == ACCURACY:
        low, high = 0, 1

    def height(y: float) -> float:
        return TOP + (HIGH - TOP - BOTTOM) * ((high - y) / (high - low) if isfinite(y) else 0)

    def place(x: float) -> float:
        return LEFT + (wide - LEFT - 60) * x / right

    def line(told, look):
        at = " ".join(f"{place(x):.1f},{height(y):.1f}" for x, y in told if isfinite(y))
        dots = "".join(
            f'<circle r="2.5" cx="{x}" cy="{y}"/>'
            for x, _, y in (each.partition(",") for each in at.split())
        )
        return f'<polyline class="{look}" points="{at}"/>{dots * (len(told) <= FEW)}'

    broken = next((x for x, y in own if not isfinite(y)), None)
    unit, _ = axis_unit(trace)
    at_end = (own or other)[-1][1]
    across, up = ticks(0, right), ticks(low, high)
    end = "no number" if broken is not None else number(at_end)
    labels = (
        (wide - 54, height(at_end) + 4, "start", end),
        (wide - 42, HIGH - 6, "start", unit),
        (LEFT + 10, HIGH - BOTTOM - 6, "start", f"from {low:.3g}, not 0" * (low > 0)),
        *((place(x), HIGH - 6, "middle", f"{x:.4g}") for x in across),
        *((LEFT - 6, height(y) + 4, "end", f"{y:,.6g}") for y in up),
    )
    grid = "".join(f"M{place(x):.1f} {TOP}V{HIGH - BOTTOM}" for x in across)
    grid += "".join(f"M{LEFT} {height(y):.1f}H{wide - 60}" for y in up)
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{side}">{escape(text)}</text>'
        for x, y, side, text in labels
    )
    title = escape(title)
    torn = f"M{LEFT - 5} {HIGH - BOTTOM - 5}l10 -5m-10 -4l10 -5" * (low > 0)  # across the axis
    return (
        f'<svg viewBox="0 0 {wide} {HIGH}" width="{wide}" role="img" aria-label="{title}">'
        f'<text class="btl-title" x="{LEFT}" y="14">{title}</text>'
        f'<path d="M{LEFT} {TOP}V{HIGH - BOTTOM}H{wide - 60}{torn}"/>'
        f'<path class="btl-grid" d="{grid}"/>'
        f"{line(other, 'btl-dashed')}{line(own, 'btl-line')}{texts}</svg>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Some three round numbers from low to high."""
    rough = (high - low) / 3
    power = 10.0 ** floor(log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    return [step * n for n in range(ceil(low / step), floor(high / step) + 1)]
