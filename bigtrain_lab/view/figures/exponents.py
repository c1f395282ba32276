"""How gradients spread over the powers of two, layer by layer, above the range of each number
format; a slider multiplies the loss.

Left the gradients of activations, right those of weights. A loss scale S = 2^s moves every gradient
by s to the right. What each format would lose at that scale stands above its bar: all of it is
worked out here, so the slider needs no kernel.
"""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Scalar, Trace, refuse
from ...core.formats import ACTIVATIONS, FORMATS, WEIGHTS, Exponents, Format, layers
from .timeline import framed

SCALES = range(21)  # log2 of the loss scales
SHOWN = "fp16", "bf16", "fp8 e5m2", "fp8 e4m3"
LOWEST = -48  # the smallest power drawn; what is below is counted all the same
LOSSES = "losses"  # the annotations that the slider rewrites
NORMAL, SUBNORMAL, GUIDE = "#3B6FA0", "#A9C4DE", "#D55E00"
SHADES = [
    [0, "rgba(53,122,189,0.1)"],
    [0.25, "rgba(53,122,189,0.4)"],
    [0.6, "rgba(53,122,189,0.8)"],
    [1, "rgba(53,122,189,1)"],
]  # more stands out from any page


def exponents(trace: Trace) -> go.Figure:
    """Of all that the trace's ranks reported with Rank.histogram("activation gradient <module>" or
    "weight gradient <weight>", ...)."""
    found = {kind: modules for kind, modules in layers(trace).items() if modules}
    refuse(
        (
            not found,
            "This trace holds no histograms of gradients: a run makes them, in the steps in which"
            " it looks at its gradients.",
        )
    )
    whole = {kind: Exponents.merged(modules.values()) for kind, modules in found.items()}
    rows = in_order(found)
    heights = [max(15 * len(rows), 60), 34 * len(SHOWN)]
    figure = make_subplots(
        rows=2,
        cols=len(found),
        shared_xaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=20 / sum(heights),
        row_heights=heights,
        column_titles=[told(kind, whole[kind]) for kind in found],
    )
    low = min([max(e.first, LOWEST) for e in whole.values() if e.counts], default=-30)
    across = {"range": [low - 1.5, FORMATS["fp16"].highest + 4], "zeroline": False}
    for column, (kind, modules) in enumerate(found.items(), 1):
        figure.add_trace(shades(modules, rows), row=1, col=column)
        for name in SHOWN:
            figure.add_traces(bars(FORMATS[name], SHOWN.index(name)), rows=2, cols=column)
        for row, text in enumerate(losses(whole[kind], 0)):
            figure.add_annotation(
                x=0,
                xref="x domain",
                y=row + 0.18,
                text=text,
                name=LOSSES,
                font_size=11,
                showarrow=False,
                xanchor="left",
                row=2,
                col=column,
            )
        for edge, side in (
            (FORMATS["fp16"].lowest - 1, "0 "),
            (FORMATS["fp16"].lowest_normal, "subnormal "),
            (FORMATS["fp16"].highest + 1, "normal in fp16 "),
        ):
            figure.add_shape(
                type="line",
                x0=edge,
                x1=edge,
                y0=0,
                y1=1,
                yref="y domain",
                line={"color": GUIDE, "width": 1, "dash": "dot"},
                row=1,
                col=column,
            )
            figure.add_annotation(
                x=edge,
                y=0,
                yref="y domain",
                text=side,
                font={"size": 10, "color": GUIDE},
                showarrow=False,
                xanchor="right",
                yanchor="top",
                borderpad=0,
                row=1,
                col=column,
            )
        figure.update_yaxes(
            autorange="reversed",
            type="category",
            categoryarray=rows,
            ticklabelstandoff=4,
            showgrid=False,
            showticklabels=column == 1,
            tickfont_size=11,
            row=1,
            col=column,
        )
        figure.update_yaxes(range=[len(SHOWN) - 0.2, -0.25], visible=False, row=2, col=column)
        figure.update_xaxes(**across, row=1, col=column)
        figure.update_xaxes(
            **across,
            tickprefix="2<sup>",
            ticksuffix="</sup>",
            title={"text": "gradient times loss scale", "standoff": 4},
            row=2,
            col=column,
        )
    figure.update_annotations(selector={"yref": "paper"}, font_size=12)
    level = trace.settings.get("level", "")
    return framed(
        figure,
        f"{trace.clock}: gradients by power of two{f', computed at level {level}' * bool(level)}",
        sum(heights) + 216,
        autosize=True,
        margin={"l": 8, "r": 12, "t": 88, "b": 112},
        sliders=[slider(figure, whole, prefix(trace))],
    )


def prefix(trace: Trace) -> str:
    """What the slider multiplies: gradients of a run that scaled its loss were counted scaled."""
    scaled = any(e.name == "loss scale" for e in trace.where(Scalar))
    return (
        "the run's own loss scale, which these gradients hold, times " if scaled else "loss scale "
    )


def in_order(found: dict[str, dict[str, Exponents]]) -> list[str]:
    """All modules from the first to the last: weights are reported in the model's order,
    activations' gradients from the end."""
    rows = list(found.get(WEIGHTS, ()))
    for name in found.get(ACTIVATIONS, ()):
        if name not in rows:
            inside = [at for at, row in enumerate(rows) if row.startswith(name + ".")]
            rows.insert(
                inside[-1] + 1 if inside else 0, name
            )  # a block's output comes after its parts
    return rows


def told(kind: str, counted: Exponents) -> str:
    """A column's title: what it holds, and how much of it was nothing from the start."""
    total = counted.nonzero + counted.zeros + counted.not_finite
    broken = f", {percent(counted.not_finite / total)} inf or nan" if counted.not_finite else ""
    return (
        f"{kind}s: {total:,}<br>{percent(counted.zeros / (total or 1))} of them 0 from the"
        f" start{broken}"
    )


def shades(modules: dict[str, Exponents], rows: list[str]) -> go.Heatmap:
    """A row a layer, a column a power of two; the darker, the more of the layer's values."""
    filled = [e for e in modules.values() if e.counts]
    first = min((e.first for e in filled), default=0)
    length = max((e.first + len(e.counts) for e in filled), default=first + 1) - first
    shares, words = [], []
    for name in rows:
        each = modules.get(name, Exponents(first, ()))
        row = [0.0] * length
        for power, count in enumerate(each.counts, each.first):
            row[power - first] = count / each.nonzero
        shares.append([share**0.5 or None for share in row])  # the root shows thin tails
        words.append(
            [
                f"{name}<br>{percent(share)} of its nonzero gradients<br>lie in 2<sup>{power}</sup>"
                f" to 2<sup>{power + 1}</sup>, unscaled"
                for power, share in enumerate(row, first)
            ]
        )
    return go.Heatmap(
        x0=first + 0.5,
        dx=1,
        y=rows,
        z=shares,
        text=words,
        hoverinfo="text",
        zmin=0,
        zmax=0.6,
        colorscale=SHADES,
        showscale=False,
        xgap=0.5,
        ygap=1,
    )


def bars(number: Format, row: int) -> list[go.Bar]:
    """Where a format has numbers: pale where they are subnormal."""
    ends = (
        (number.lowest - 1, number.lowest_normal, SUBNORMAL, "subnormal: fewer and fewer bits"),
        (
            number.lowest_normal,
            number.highest + 1,
            NORMAL,
            f"normal: {number.mantissa_bits + 1} bits",
        ),
    )
    return [
        go.Bar(
            base=[start],
            x=[end - start],
            y=[row + 0.56],
            width=0.2,
            orientation="h",
            marker_color=colour,
            marker_line_width=0,
            showlegend=False,
            hovertext=f"{number.name}, {what}, from 2<sup>{start}</sup> to 2<sup>{end}</sup>",
            hoverinfo="text",
        )
        for start, end, colour, what in ends
    ]


def losses(counted: Exponents, log2_scale: int) -> list[str]:
    """What each format shown would lose at this scale of the gradients that are not 0; no scale
    mends one that is inf or nan already."""
    finite = counted.nonzero / (counted.nonzero + counted.not_finite or 1)
    lines = []
    for name in SHOWN:
        shares = counted.shares(name, log2_scale)
        over = ("inf", "inf or nan", "clipped", "clipped, inf or nan")[
            2 * (not FORMATS[name].infinite) + bool(counted.not_finite)
        ]
        beyond = shares.overflow * finite + (1 - finite if counted.not_finite else 0)
        lines.append(
            f"<b>{name}</b>  {percent(shares.zero * finite)} to 0,"
            f" {percent(shares.subnormal * finite)} subnormal, {percent(beyond)} {over}"
        )
    return lines


def slider(figure: go.Figure, whole: dict[str, Exponents], prefix: str) -> dict:
    """One step a scale: it moves the shades and rewrites the losses."""
    shaded = [i for i, each in enumerate(figure.data) if isinstance(each, go.Heatmap)]
    texts = [i for i, each in enumerate(figure.layout.annotations) if each.name == LOSSES]
    steps = []
    for s in SCALES:
        lines = [line for counted in whole.values() for line in losses(counted, s)]
        moved, written = (
            {"x0": [figure.data[i].x0 + s for i in shaded]},
            {f"annotations[{i}].text": line for i, line in zip(texts, lines, strict=True)},
        )
        steps.append({"method": "update", "label": f"{2**s:,}", "args": [moved, written, shaded]})
    return of_scales(steps, prefix)


def of_scales(steps: list[dict], prefix: str) -> dict:
    """A slider below the figure, with a step for each loss scale."""
    return {
        "active": 0,
        "steps": steps,
        "x": 0.02,
        "len": 0.96,
        "y": 0,
        "pad": {"t": 52, "b": 0},
        "ticklen": 4,
        "font_size": 10,
        "currentvalue": {"prefix": prefix, "font_size": 13, "xanchor": "left"},
    }


def percent(share: float) -> str:
    """Two digits of a share; "0%" only where there is nothing, and "100%" only where it is all."""
    if share in (0, 1):
        return f"{share:.0%}"
    if share < 1e-4:
        return "<0.01%"
    return f"{min(share, 0.9999):.2%}" if share < 0.001 or share > 0.999 else f"{share:.1%}"
