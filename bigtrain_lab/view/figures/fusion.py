"""A captured graph: every kernel as a box with its operators in it, and what crosses memory between
boxes."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Trace, counted, size
from .. import palette, words
from .timeline import framed

TALL = 6  # operators in a column of a box
ROOM = 2.6  # round the highest box of a row, in operators
WIDE, GAP = 1.0, 0.55  # of a column, and between boxes


def fusion(trace: Trace) -> go.Figure:
    """A row a pass, eager and fused; time goes to the right. Lines between boxes are values in
    memory."""
    graph = words.facts_of(trace, "graph", "knows no captured graph", "compile")["graph"]
    rows = {
        f"{way}, {by}: {counted(len(own), 'kernel')}, {size(sum(each['bytes'] for each in own))}"
        " moved": (own, palette.phase("F" if way == "forward" else "B"))
        for way, drawn in graph.items()
        for by, own in drawn.items()
        if by == "eager" or own != drawn["eager"]
    }
    heights = [max(tall(each) for each in own) for own, _ in rows.values()]
    figure = make_subplots(
        rows=len(rows),
        subplot_titles=[*rows],
        vertical_spacing=0.16,
        row_heights=[high + ROOM for high in heights],
    )
    for row, ((own, colour), high) in enumerate(zip(rows.values(), heights), 1):
        draw_pass(figure, own, colour, row, high)
        figure.update_yaxes(range=[-high / 2 - 1.6, high / 2 + ROOM - 1.6], row=row, col=1)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_annotations(selector={"yanchor": "bottom"}, font_size=12)
    return framed(
        figure,
        "boxes are kernels; lines between them are values in memory",
        60 + 100 * len(rows),
        showlegend=False,
        margin={"l": 8, "r": 8, "t": 64, "b": 8},
    )


def tall(kernel: dict) -> int:
    """Operators in a column: all columns are about as high."""
    return -(-len(kernel["operators"]) // -(-len(kernel["operators"]) // TALL))


def draw_pass(figure: go.Figure, kernels: list, colour: str, row: int, high: int) -> None:
    places, left = {}, 1.4
    for kernel in kernels:
        columns = -(-len(kernel["operators"]) // TALL)
        places[kernel["name"]] = left, left + WIDE * columns
        left += WIDE * columns + GAP
    lines, given = (
        {"x": [], "y": []},
        {name for each in kernels for name in each["reads"]} - places.keys(),
    )
    for kernel in kernels:
        start = places[kernel["name"]][0]
        for name in kernel["reads"]:
            begin, way = (
                (0.75, 0) if name in given else (places[name][1], places[name][1] + GAP / 2)
            )
            far = name in given and start > 1.5 or name not in given and start - begin > GAP + 0.01
            low = -high / 2 - 1.4 if name in given else high / 2 + 0.5  # round the boxes between
            lines["x"] += [
                begin,
                *([way or begin + GAP / 2, start - GAP / 2] if far else []),
                start,
                None,
            ]
            lines["y"] += [0, *([low, low] if far else []), 0, None]
    ends = [
        place for kernel in kernels if kernel["is_result"] for place in [places[kernel["name"]][1]]
    ]
    for end in ends:
        far = end < left - GAP - 0.01
        lines["x"] += [end, *([end + GAP / 2, left - GAP / 2] if far else []), left, None]
        lines["y"] += [0, *([high / 2 + 0.5] * 2 if far else []), 0, None]
    figure.add_trace(
        go.Scatter(
            **lines, mode="lines", line={"color": palette.TRANSFER, "width": 1.5}, hoverinfo="skip"
        ),
        row=row,
        col=1,
    )
    for kernel in kernels:
        draw_kernel(figure, kernel, *places[kernel["name"]], colour, row)
    for x, text in (
        (0.4, "input" + "s" * (len(given) > 1)),
        (left + 0.4, "result" + "s" * (len(ends) > 1)),
    ):
        figure.add_annotation(x=x, y=0, text=text, showarrow=False, font_size=12, row=row, col=1)
    figure.update_xaxes(range=[-0.1, left + 0.9], row=row, col=1)


def draw_kernel(
    figure: go.Figure, kernel: dict, left: float, right: float, colour: str, row: int
) -> None:
    operators = kernel["operators"]
    deep = tall(kernel)
    high = deep / 2
    figure.add_shape(
        type="rect",
        x0=left,
        x1=right,
        y0=-high,
        y1=high,
        line={"color": colour, "width": 2},
        fillcolor=colour,
        layer="below",  # else it lies over the words
        row=row,
        col=1,
    )
    figure.add_trace(
        go.Scatter(
            x=[left + WIDE * (k // deep + 0.5) for k in range(len(operators))],
            y=[high - k % deep - 0.5 for k in range(len(operators))],
            mode="text",
            text=[each[1] for each in operators],
            textfont={"size": 11, "color": palette.ink(colour)},
            hovertext=[
                f"<b>{name}</b>: {word} of {', '.join(reads)}<br>kernel {kernel['name']}:"
                f" {size(kernel['bytes'])} read and written"
                for name, word, reads in operators
            ],
            hoverinfo="text",
        ),
        row=row,
        col=1,
    )
    figure.add_annotation(
        x=(left + right) / 2,
        y=-high,
        text=size(kernel["bytes"]),
        showarrow=False,
        yanchor="top",
        font_size=10,
        row=row,
        col=1,
    )
