"""What a run reports while it learns: small charts side by side, a line over its time each; what
is pinned is dashed beneath it."""

from collections.abc import Iterable
from html import escape
from math import ceil, floor, isfinite, log10

from ..core import Scalar, Trace, grouped, number
from ..order import ACCURACY
from . import palette, words
from .packed import comparable

LEAST, HIGH = 260, 304  # of a chart, in pixels
LEFT, TOP, RIGHT, BOTTOM = 52, 30, 84, 26  # its margins
FEW, MOST = 20, 600  # points of a line that are dots too; more than MOST cannot be told apart
NAMED = 8  # ranks beside a title
LETTER, LABEL = 13, 64  # pixels: labels nearer than this, up and along, cannot be read
TICKS = 5  # on an axis, about


def curves(
    titles: dict[str, str],
    trace: Trace,
    pinned: Trace | None = None,
    beside: str = "what is pinned",
    width: int = 900,
    hint: str = "",
) -> str:
    """A chart for each title, with all names of this title of which the trace tells: the last one
    bold, the others thin. In grey what is pinned, or what else stands `beside` it; where nothing
    does, a `hint`. All charts together are as wide as this, in pixels."""
    pinned = pinned if pinned and comparable(trace, pinned) else None
    own = reported(trace, titles)
    names = {*own, *reported(pinned, titles)}
    if trace.clock == "predicted":
        names |= {*titles} & {ACCURACY}  # what a run is to reach
    charts = grouped((title, name) for name, title in titles.items() if name in names)
    wide = max(LEAST, width // max(1, len(charts)) - 24)
    drawn = "".join(chart(title, of, trace, pinned, wide) for title, of in charts.items())
    told = f"Grey: {beside}. " * bool(reported(pinned, names))
    if trace.clock == "predicted":
        told += "What is learnt is drawn while a run goes on: press Run."
    elif not own:
        told += "The run ended before it told of it."
    elif not told:
        told = hint
    return f'<div class="btl-curves">{drawn}{f"<p>{told}</p>" * bool(told)}</div>'


def reported(trace: Trace | None, names: Iterable[str]) -> list[str]:
    """Those of these names of which the trace tells."""
    return [name for name in names if trace is not None and trace.where(Scalar, name=name)]


def lines(trace: Trace, name: str, factor: float) -> dict[str, list[tuple[float, float]]]:
    """Who reports by this name -> (time since the start, value), in time, the last one too; one
    line where all ranks report the same, as far as they are. `factor`: an axis's units per trace
    unit."""
    told = grouped((each.rank, (each.start, each.value)) for each in trace.where(Scalar, name=name))
    longest = max(told.values(), key=len, default=[])
    names = dict(enumerate(words.rank_names(trace)))
    values = [[str(value) for _, value in own] for own in told.values()]  # a NaN is one too
    if all(own == max(values, key=len)[: len(own)] for own in values):
        told, names = {0: longest} if told else {}, {0: "all"}
    begin = trace.events[0].start if told else 0
    return {
        names[rank]: [
            (trace.units(tick - begin) * factor, value)
            for tick, value in own[:: -1 - len(own) // MOST][::-1]
        ]
        for rank, own in sorted(told.items())
    }


def chart(title: str, names: list[str], trace: Trace, pinned: Trace | None, wide: int) -> str:
    given = (
        [("btl-dashed", pinned, names[-1])] * bool(pinned)
        + [("btl-thin", trace, name) for name in names[:-1]]
        + [("btl-line", trace, names[-1])]
    )
    unit, factor = words.axis_unit(
        max(filter(None, (trace, pinned)), key=lambda each: each.makespan)
    )
    drawn = [
        (look, who, told)
        for look, of, name in given
        for who, told in lines(of, name, factor).items()
    ]
    several = [who for look, who, _ in drawn if look == "btl-line" and who != "all"]
    colours = {who: palette.version(at) for at, who in enumerate(several[:NAMED])}
    seen = [(x, y) for *_, told in drawn for x, y in told if isfinite(y)] or [(0.0, 0.0)]
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
    if names[-1] == "BLEU":  # less is no translation, and no progress
        low, high = 0, max(high, 10)
    if names[-1] == ACCURACY:
        low, high, goals = 0, 1, [y for y in [trace.settings.get("target")] if y]
        at_end, on_axis = "{:.1%}".format, "{:.0%}".format
    across, up = [x for x in ticks(0, right) if x <= right], ticks(low, high)
    low, high, side, ground = up[0], up[-1], wide - RIGHT, HIGH - BOTTOM

    def height(y: float) -> float:
        return TOP + (ground - TOP) * ((high - y) / (high - low) if isfinite(y) else 0)

    def place(x: float) -> float:
        return LEFT + (side - LEFT) * x / right

    ends = [(side + 22, HIGH - 6)]  # where labels stand already, the unit among them

    def line(look, who, told):
        at = [f"{place(x):.1f},{height(y):.1f}" for x, y in told if isfinite(y)]
        dots = "".join('<circle r="2.5" cx="{}" cy="{}"/>'.format(*each.split(",")) for each in at)
        joined = f'<polyline class="{look}" points="{" ".join(at)}"/>'
        own = f' style="--own:{colours[who]}"' if who in colours else ""
        *_, (x, y) = [each for each in told if isfinite(each[1])] or told
        text = at_end(y) if isfinite(told[-1][1]) else "no number from here on"
        spots = [(place(x) + 8, height(y) + 4 + up) for up in (0, -LETTER, LETTER)]
        free = [
            (at, down)
            for at, down in spots
            if all(abs(at - x) > LABEL or abs(down - y) >= LETTER for x, y in ends)
        ]
        end = (free or spots)[0]
        ends.extend(free[:1])
        label = '<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>'.format(*end, look, text) * bool(
            free
        )
        return f'<g class="{look}"{own}>{joined}{dots * (len(told) <= FEW)}{label}</g>'

    joined = [line(*each) for each in reversed(drawn)]  # the bold line's label comes first
    labels = [
        *((place(x), HIGH - 6, "middle", f"{x:.4g}") for x in across),
        *((LEFT - 8, height(y) + 4, "end", on_axis(y)) for y in up),
        *((LEFT + 6, height(y) - 5, "start", f"target {y:.0%}") for y in goals),
        (side + 22, HIGH - 6, "start", unit),
        (LEFT + 10, ground - 6, "start", f"from {low:.3g}, not 0" * (low > 0)),
    ]
    levels, aims = (
        "".join(f"M{LEFT} {height(y):.1f}H{side}" for y in each) for each in (up, goals)
    )
    grid = levels + "".join(f"M{place(x):.1f} {TOP}V{ground}" for x in across)
    torn = f"M{LEFT - 5} {ground - 5}l10 -5m-10 -4l10 -5" * (low > 0)  # across the axis
    texts = "".join(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        for x, y, anchor, text in labels
    )
    title = escape(
        title if "btl-thin" in {look for look, *_ in drawn} else title.partition("; thin")[0]
    )
    key = "".join(
        f'<tspan class="btl-key" dx="16" style="fill:{colour}">\u25cf</tspan>'
        f'<tspan class="btl-key" dx="4">{escape(who)}</tspan>'
        for who, colour in colours.items()
    )
    return (
        f'<svg viewBox="0 0 {wide} {HIGH}" width="{wide}" role="img" aria-label="{title}">'
        f'<text class="btl-title" x="{LEFT}" y="14">{title}{key}</text>'
        f'<path class="btl-grid" d="{grid}"/>'
        f'<path d="M{LEFT} {TOP}V{ground}H{side}{aims}{torn}"/>'
        f"{''.join(reversed(joined))}{texts}</svg>"
    )


def ticks(low: float, high: float) -> list[float]:
    """Some five round numbers; the first is not above low, the last not below high."""
    rough = (high - low) / TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough)
    return [step * n for n in range(floor(low / step), ceil(high / step) + 1)]
