"""The types of a mixed precision step, drawn around: forward above, backward and update below, each
box a real tensor.

Half boxes are narrow bars of colour, float32 ones wide: a type is told by its width, its colour and
its name.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from ...core import Trace, refuse
from ...core.formats import Station, stations
from .. import palette
from .timeline import framed

FILLS = {"float32": "#4477AA", "float16": "#EE9A3A", "bfloat16": "#EE9A3A"}
WIDE, NARROW, TALL = 0.37, 0.3, 0.27  # half the width of a box of 32 bits, of 16; half its height
TURNS = "loss", "scaled loss"  # where forward ends


def precision_flow(flowing: Trace | Sequence[Station]) -> go.Figure:
    """Of a trace whose run reported its stations, or of the stations that
    techniques.precision_flow.flow returned."""
    line = stations(flowing) if isinstance(flowing, Trace) else list(flowing)
    refuse(
        (
            not line,
            "This trace holds no stations of a step: flow() of techniques/precision_flow.py takes a"
            " step that reports them.",
        )
    )
    forward = 1 + max(
        (i for i, each in enumerate(line) if each.name in TURNS), default=len(line) - 1
    )
    backward = len(line) - forward
    columns = max(forward, backward, 2)
    places = [
        *((spaced(i, forward, columns), 1.0) for i in range(forward)),
        *((columns - 1 - spaced(i, backward, columns), 0.0) for i in range(backward)),
    ]
    figure = go.Figure()
    for station, (x, y) in zip(line, places):
        box(figure, station, x, y)
    for (before, start), (station, end) in zip(zip(line, places), [*zip(line, places)][1:]):
        arrow(figure, station.how, start, end, width(before), width(station))
    if backward:
        arrow(figure, "step", places[-1], places[0], width(line[-1]), width(line[0]))
    return framed(
        figure,
        "each value of a step, in the type it really has",
        300,
        autosize=True,
        margin={"l": 12, "r": 12, "t": 48, "b": 12},
        showlegend=False,
        xaxis={"range": [-0.55, columns - 0.45], "visible": False},
        yaxis={"range": [-0.5, 1.5], "visible": False},
    )


def spaced(i: int, count: int, columns: int) -> float:
    """The place of one of `count` boxes spread over so many columns."""
    return i * (columns - 1) / (count - 1) if count > 1 else 0.0


def width(station: Station) -> float:
    return NARROW if station.dtype in ("float16", "bfloat16") else WIDE


def box(figure: go.Figure, station: Station, x: float, y: float) -> None:
    fill = FILLS.get(station.dtype, palette.OTHER_PHASE)
    half = width(station)
    figure.add_shape(
        type="rect",
        x0=x - half,
        x1=x + half,
        y0=y - TALL,
        y1=y + TALL,
        fillcolor=fill,
        line={"width": 0},
    )
    shape = " × ".join(map(str, station.shape)) or "one number"
    name = station.name.replace(" of ", "<br>of ").replace("optimizer's ", "optimizer's<br>")
    figure.add_annotation(
        x=x,
        y=y,
        text=f"{name}<br><b>{station.dtype}</b><br>{shape}",
        showarrow=False,
        font={"size": 11, "color": palette.ink(fill)},
    )


def arrow(
    figure: go.Figure, text: str, start: tuple, end: tuple, leaves: float, enters: float
) -> None:
    """From box to box, along a row or down a side, with what happens on the way."""
    (x0, y0), (x1, y1) = start, end
    if y0 == y1:
        way = 1 if x1 > x0 else -1
        x0, x1 = x0 + way * leaves, x1 - way * enters
    else:
        way = 1 if y1 > y0 else -1
        y0, y1 = y0 + way * TALL, y1 - way * TALL
    figure.add_annotation(
        x=x1,
        y=y1,
        ax=x0,
        ay=y0,
        xref="x",
        yref="y",
        axref="x",
        ayref="y",
        text="",
        showarrow=True,
        arrowhead=2,
        arrowwidth=1.5,
        arrowcolor=palette.TRANSFER,
    )
    flat = y0 == y1
    figure.add_annotation(
        x=(x0 + x1) / 2,
        y=(y0 + y1) / 2 + (TALL + 0.09 if flat else 0),
        text=text,
        showarrow=False,
        font={"size": 11, "color": palette.TRANSFER},
        xanchor="center" if flat else ("left" if way > 0 else "right"),
        xshift=0 if flat else (6 if way > 0 else -6),
    )
