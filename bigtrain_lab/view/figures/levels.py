"""Levels of precision side by side: how each one learns, and the table of the field: speed, F1,
bytes to keep, peak of memory.

Above, one small chart a level, on the same axes: the loss of its training, a mean over a twentieth
of it, and behind it, wide and grey, the first level's, to compare with; a cross is where it stopped
being a number. Below, one column a quantity, one bar a level, in the colour of its curve; a level
without a bar has no such number. The hardware that the clocks charge for is named above.
"""

from collections.abc import Callable, Iterable
from math import isfinite, lcm

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Trace, refuse, size
from ...order import Level, field
from .. import palette
from .timeline import framed

COLOURS = (*palette.VERSIONS[:6], "#7B61D6")  # no yellow: a thin line of it is lost on white
ROW, CURVES, FRAME = 34, 150, 228  # heights in pixels: a level's bar, the curves, titles and axes


def levels(traces: Iterable[Trace]) -> go.Figure:
    """Of traces of the experiment `precision`, modelled, measured or both of each level."""
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    rows = field(traces)
    refuse(
        (
            not rows,
            "There is nothing to compare: give at least one trace of the experiment precision.",
        )
    )
    columns, curves = columns_of(rows), rows if any(row.losses for row in rows) else []
    heights = [CURVES] * bool(curves) + [ROW * len(rows) + 20]
    grid = lcm(
        len(columns), len(curves) or 1
    )  # fine enough for both rows; a cell spans some of its columns

    def cells(count: int) -> list[dict | None]:
        return [
            each
            for _ in range(count)
            for each in ({"colspan": grid // count}, *[None] * (grid // count - 1))
        ]

    figure = make_subplots(
        rows=len(heights),
        cols=grid,
        specs=[*([cells(len(curves))] if curves else []), cells(len(columns))],
        row_heights=heights,
        vertical_spacing=0.26 * bool(curves),
        horizontal_spacing=0.9 / max(grid, 40),
        shared_yaxes=True,
        subplot_titles=[
            *map(heading, range(len(curves)), curves),
            *(title for title, _, _ in columns),
        ],
    )
    draw_curves(figure, curves, grid // (len(curves) or 1))
    figure.update_annotations(font_size=11, yshift=2)
    for column, (_, value, words) in enumerate(columns):
        draw_bars(figure, rows, value, words, len(heights), 1 + column * (grid // len(columns)))
    title = "how they learn, and what they come to" if curves else "what they come to"
    return framed(
        figure,
        f"levels of precision: {title}",
        sum(heights) + (FRAME if curves else FRAME - 50),
        showlegend=False,
        margin={"l": 118, "r": 14, "t": 104 if curves else 130, "b": 16},
        title={
            "subtitle": {"text": sources(traces), "font_size": 12},
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad_t": 14,
        },
    )


def sources(traces: list[Trace]) -> str:
    """Where each clock's numbers come from, in words."""
    clocks = {trace.clock for trace in traces}
    charged = [clock for clock in ("predicted", "modelled") if clock in clocks]
    hardware = sorted({trace.settings["hardware"] for trace in traces})
    return "; ".join(
        [f"{' and '.join(charged)}: what the profile {', '.join(hardware)} would take"]
        * bool(charged)
        + ["measured: the machine that ran it"] * ("measured" in clocks)
    )


def heading(number: int, row: Level) -> str:
    """A level's name in its colour, with a cross where its loss stopped being a number."""
    return (
        f'<span style="color:{colour(number)}">'
        f"{'✕ ' * (len(means(row)) < len(row.losses))}<b>{row.name}</b></span>"
    )


def columns_of(
    rows: list[Level],
) -> list[tuple[str, Callable[[Level], float | None], Callable[[float], str]]]:
    """(title, a level's value, its words) of what any of the levels has."""

    def rate(value):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    rates = [
        (f"{what}<br>{clock}", lambda row, of=of, clock=clock: of(row).get(clock), rate)
        for what, of in (
            ("training<br>steps/s", lambda row: row.training),
            ("inference<br>batches/s", lambda row: row.reading),
        )
        for clock in ("predicted", "modelled", "measured")
    ]
    scores = [
        (
            f"{name} F1,<br>names<br>never met",
            lambda row, name=name: getattr(row, name),
            "{:.3f}".format,
        )
        for name in ("micro", "macro")
    ]
    states = [
        ("checkpoint,<br>to go on", lambda row: row.checkpoint_bytes, size),
        ("peak of<br>memory", lambda row: row.peak_bytes, size),
    ]
    return [
        each for each in (*rates, *scores, *states) if any(each[1](row) is not None for row in rows)
    ]


def draw_curves(figure: go.Figure, rows: list[Level], span: int) -> None:
    """A chart a level, `span` columns of the grid wide: its curve upon the first level's; in words
    where it ends in nan."""
    curves, steps = [means(row) for row in rows], max((len(row.losses) for row in rows), default=0)
    for number, (row, y) in enumerate(zip(rows, curves)):
        place = {"row": 1, "col": 1 + number * span}
        if number:
            figure.add_scatter(
                x=list(range(1, len(curves[0]) + 1)),
                y=curves[0],
                mode="lines",
                name="",
                hoverinfo="skip",
                showlegend=False,
                line={"color": palette.IDLE, "width": 6},
                **place,
            )
        figure.add_scatter(
            x=list(range(1, len(y) + 1)),
            y=y,
            mode="lines" if len(y) > 1 else "markers+lines",
            name=row.name,
            line={"color": colour(number), "width": 2},
            hovertemplate=f"{row.name}, step %{{x}}: loss %{{y:.3f}}<extra></extra>",
            **place,
        )
        if len(y) < len(row.losses):
            figure.add_annotation(
                text=f"nan from<br>step {len(y) + 1} on",
                x=steps,
                y=max(curves[0], default=1),
                xanchor="right",
                yanchor="top",
                showarrow=False,
                **place,
            )
        figure.update_xaxes(
            title={"text": "step", "standoff": 2},
            zeroline=False,
            range=[0, 1.05 * steps],
            nticks=3,
            **place,
        )
        figure.update_yaxes(rangemode="tozero", title=None if number else "loss", **place)


def means(row: Level) -> list[float]:
    """The losses up to the first that is no number, each the mean of a twentieth of the training
    that ends there."""
    width = max(1, len(row.losses) // 20)
    good = next((i for i, loss in enumerate(row.losses) if not isfinite(loss)), len(row.losses))
    return [sum(row.losses[max(0, i + 1 - width) : i + 1]) / min(i + 1, width) for i in range(good)]


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def draw_bars(figure: go.Figure, rows: list[Level], value, words, line: int, column: int) -> None:
    """One bar a level, its number above it."""
    values = [value(row) for row in rows]
    most = max((v for v in values if v is not None), default=0) or 1
    figure.add_bar(
        y=[row.name for row in rows],
        x=[v or 0 for v in values],
        orientation="h",
        showlegend=False,
        width=0.2,
        offset=0.2,
        marker={"color": [colour(i) for i in range(len(rows))], "line_width": 0},
        hoverinfo="skip",
        row=line,
        col=column,
    )
    for row, v in zip(rows, values):
        figure.add_annotation(
            x=0,
            y=row.name,
            text="" if v is None else words(v),
            showarrow=False,
            xanchor="left",
            xshift=-4,
            font_size=12,
            row=line,
            col=column,
        )
    figure.update_xaxes(
        range=[0, 1.04 * most],
        showticklabels=False,
        showgrid=False,
        zeroline=False,
        row=line,
        col=column,
    )
    figure.update_yaxes(
        autorange="reversed",
        categoryorder="array",
        categoryarray=[row.name for row in rows],
        ticksuffix="  ",
        showgrid=False,
        row=line,
        col=column,
    )
