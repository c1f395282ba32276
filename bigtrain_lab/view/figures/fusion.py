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
    named = [
        (0.4, 0, "input" + "s" * (len(given) > 1), 12),
        (left + 0.4, 0, "result" + "s" * (len(ends) > 1), 12),
        *(
            (sum(places[each["name"]]) / 2, -tall(each) / 2 - 0.25, size(each["bytes"]), 10)
            for each in kernels
        ),
    ]
    x, y, text, fonts = zip(*named, strict=True)
    figure.add_traces(
        [
            go.Scatter(
                **lines,
                mode="lines",
                line={"color": palette.TRANSFER, "width": 1.5},
                hoverinfo="skip",
            ),
            *boxes(kernels, places, colour),
            go.Scatter(
                x=x,
                y=y,
                text=text,
                mode="text",
                textfont_size=fonts,
                cliponaxis=False,
                textposition=["middle center"] * 2 + ["bottom center"] * len(kernels),
                hoverinfo="skip",
            ),
        ],
        rows=row,
        cols=1,
    )
    figure.update_xaxes(range=[-0.1, left + 0.9], row=row, col=1)


def boxes(kernels: list, places: dict[str, tuple], colour: str) -> list[go.Scatter]:
    """One trace of boxes and one of their words, however many: a browser takes long for each."""
    placed = [(each, *places[each["name"]], tall(each)) for each in kernels]
    corners = [
        (x, y * deep / 2)
        for _, left, right, deep in placed
        for x, y in ((left, 1), (right, 1), (right, -1), (left, -1), (left, 1), (None, 0))
    ]
    operators = [
        (
            left + WIDE * (k // deep + 0.5),
            deep / 2 - k % deep - 0.5,
            word,
            f"<b>{name}</b>: {word} of {', '.join(reads)}<br>kernel {kernel['name']}:"
            f" {size(kernel['bytes'])} read and written",
        )
        for kernel, left, _, deep in placed
        for k, (name, word, reads) in enumerate(kernel["operators"])
    ]
    around, heights = zip(*corners, strict=True)
    x, y, text, hover = zip(*operators, strict=True)
    return [
        go.Scatter(
            x=around,
            y=heights,
            mode="lines",
            fill="toself",
            fillcolor=colour,
            line={"color": colour, "width": 2},
            hoverinfo="skip",
        ),
        go.Scatter(
            x=x,
            y=y,
            text=text,
            mode="text",
            textfont={"size": 11, "color": palette.ink(colour)},
            hovertext=hover,
            hoverinfo="text",
        ),
    ]
