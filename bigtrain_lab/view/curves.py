"""What a run reports while it learns: small charts side by side, a line over its time each; what
is pinned is dashed beneath it."""

from collections.abc import Iterable
from html import escape
from math import ceil, dist, floor, isfinite, log10

from ..core import Scalar, Trace, grouped, number
from ..order import ACCURACY
from .packed import comparable
from .words import axis_unit

LEAST, HIGH = 260, 304  # of a chart, in pixels
LEFT, TOP, RIGHT, BOTTOM = 52, 30, 84, 26  # its margins
FEW, MOST = 20, 600  # points of a line that are dots too; more than MOST cannot be told apart
LETTER = 13  # pixels: labels nearer than this cannot be read
TICKS = 5  # on an axis, about


def curves(
    titles: dict[str, str],
    trace: Trace,
    pinned: Trace | None = None,
    beside: str = "what is pinned",
    width: int = 900,
) -> str:
    """A chart for each title, with all names of this title of which the trace tells: the last one
    bold, the others thin. In grey what is pinned, or what else stands `beside` it. All charts
    together are as wide as this, in pixels."""
    pinned = pinned if pinned and comparable(trace, pinned) else None
    own = reported(trace, titles)
    names = {*own, *reported(pinned, titles)}
    charts = grouped((title, name) for name, title in titles.items() if name in names)
    wide = max(LEAST, width // max(1, len(charts)) - 24)
    drawn = "".join(chart(title, of, trace, pinned, wide) for title, of in charts.items())
    told = f"Grey: {beside}. " * bool(reported(pinned, names))
    if trace.clock == "predicted":
        told += "What is learnt is drawn while a run goes on: press Run."
    elif not own:
        told += "The run ended before it told of it."
    return f'<div class="btl-curves">{drawn}{f"<p>{told}</p>" * bool(told)}</div>'


def reported(trace: Trace | None, names: Iterable[str]) -> list[str]:
    """Those of these names of which the trace tells."""
    return [name for name in names if trace is not None and trace.where(Scalar, name=name)]


def points(trace: Trace, name: str, factor: float) -> list[tuple[float, float]]:
    """(time since the start, value) of what ranks report by this name, in time, the last one too.
    `factor`: an axis's units per trace unit."""
    told = [(each.start, each.value) for each in trace.where(Scalar, name=name)]
    begin = trace.events[0].start if told else 0
    once = dict.fromkeys(told)  # ranks may report one value each
    return [
        (trace.units(tick - begin) * factor, value)
        for tick, value in [*once][:: -1 - len(once) // MOST][::-1]
    ]


def chart(title: str, names: list[str], trace: Trace, pinned: Trace | None, wide: int) -> str:
    given = (
        [("btl-dashed", pinned, names[-1])] * bool(pinned)
        + [("btl-thin", trace, name) for name in names[:-1]]
        + [("btl-line", trace, names[-1])]
    )
    unit, factor = axis_unit(max(filter(None, (trace, pinned)), key=lambda each: each.makespan))
    lines = {look: told for look, of, name in given if (told := points(of, name, factor))}
    seen = [(x, y) for told in lines.values() for x, y in told if isfinite(y)] or [(0.0, 0.0)]
    whole = [
        of.units(of.step_ends[-1] - of.events[0].start) * factor
        for of in (trace, pinned)
        if of and of.events
    ]
    right = max(*whole, *(x for x, _ in seen)) or 1
    low, high = min(y for _, y in seen), max(y for _, y in seen)
    if high == low:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    low = 0 if 0 < low < high / 2 else low
    at_end, on_axis, goals = number, "{:,.6g}".format, []
    if names[-1] == ACCURACY:
        low, high, goals = 0, 1, [y for y in [trace.settings.get("target")] if y]
        at_end, on_axis = "{:.1%}".format, "{:.0%}".format
    across, up = [x for x in ticks(0, right) if x <= right], ticks(low, high)
    low, high, side, ground = up[0], up[-1], wide - RIGHT, HIGH - BOTTOM

    def height(y: float) -> float:
        return TOP + (ground - TOP) * ((high - y) / (high - low) if isfinite(y) else 0)

    def place(x: float) -> float:
        return LEFT + (side - LEFT) * x / right

    def line(look, told):
        at = [f"{place(x):.1f},{height(y):.1f}" for x, y in told if isfinite(y)]
        dots = "".join('<circle r="2.5" cx="{}" cy="{}"/>'.format(*each.split(",")) for each in at)
        alone = len({x for x, _ in told}) >= len(told) - 1  # no line joins values of one time
        joined = f'<polyline class="{look}" points="{" ".join(at)}"/>' * alone
        return f'<g class="{look}">{joined}{dots * (not alone or len(told) <= FEW)}</g>'

    ends = {look: (place(told[-1][0]) + 8, height(told[-1][1]) + 4) for look, told in lines.items()}
    labels = [
        *(
            (
                *ends[look],
                "start",
                look,
                at_end(told[-1][1]) if all(isfinite(y) for _, y in told) else "no number",
            )
            for look, told in lines.items()
            if look == "btl-line" or dist(ends[look], ends.get("btl-line", (0, 0))) > LETTER
        ),
        *((place(x), HIGH - 6, "middle", "", f"{x:.4g}") for x in across),
        *((LEFT - 8, height(y) + 4, "end", "", on_axis(y)) for y in up),
        *((LEFT + 6, height(y) - 5, "start", "", f"target {y:.0%}") for y in goals),
        (side + 22, HIGH - 6, "start", "", unit),
        (LEFT + 10, ground - 6, "start", "", f"from {low:.3g}, not 0" * (low > 0)),
    ]
    levels, aims = (
        "".join(f"M{LEFT} {height(y):.1f}H{side}" for y in each) for each in (up, goals)
    )
    grid = levels + "".join(f"M{place(x):.1f} {TOP}V{ground}" for x in across)
    torn = f"M{LEFT - 5} {ground - 5}l10 -5m-10 -4l10 -5" * (low > 0)  # across the axis
    texts = "".join(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{look}">{escape(text)}</text>'
        for x, y, anchor, look, text in labels
    )
    title = escape(title)
    return (
        f'<svg viewBox="0 0 {wide} {HIGH}" width="{wide}" role="img" aria-label="{title}">'
        f'<text class="btl-title" x="{LEFT}" y="14">{title}</text>'
        f'<path class="btl-grid" d="{grid}"/>'
        f'<path d="M{LEFT} {TOP}V{ground}H{side}{aims}{torn}"/>'
        f"{''.join(line(*each) for each in lines.items())}{texts}</svg>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Some five round numbers; the first is not above low, the last not below high."""
    rough = (high - low) / TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    return [step * n for n in range(floor(low / step), ceil(high / step) + 1)]
