"""Which part of each matrix lies on which rank, and what every layout sends, takes and holds.

The matrices lie as in a product by hand: X left of Y, W above it. A part's number is its rank; several hold duplicates.
"""

from itertools import pairwise

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..core import Impossible, Trace
from ..words import duration, size
from . import palette
from .timeline import look

NUMBERED = 16  # ranks: beyond, numbers are too small to be read
PLACES = {"X": (0, 0), "W": (1, 1), "Y": (1, 0)}  # right, up
GAP = 1.16


def layouts(trace: Trace) -> go.Figure:
    """Two pictures side by side: the parts, and the layouts compared, the chosen one bold."""
    facts = trace.settings.get("facts", {})
    if "boxes" not in facts:
        raise Impossible("This trace knows no layouts: take one of the experiment layouts.")
    figure = make_subplots(cols=2, column_widths=[0.36, 0.64], horizontal_spacing=0.14)
    for matrix, boxes in facts["boxes"].items():
        draw_parts(figure, matrix, boxes, facts["sizes"])
    figure.update_xaxes(visible=False, range=[-0.2, 1 + GAP], row=1, col=1)
    figure.update_yaxes(visible=False, range=[-0.06, 1.12 + GAP], row=1, col=1)
    draw_compared(figure, facts["compared"], facts["layout"])
    figure.update_layout(**look(f"{facts['layout']}: the parts of {len(facts['boxes']['X'])} ranks, and what each layout sends", 360))
    figure.update_layout(barmode="stack", margin=dict(l=8, r=16, t=72, b=44))
    return figure


def draw_parts(figure: go.Figure, matrix: str, boxes: list, sizes: dict) -> None:
    """A matrix as a square, cut where its parts end; `boxes`: of each rank, (start, stop) of its rows and of its columns."""
    dims = {"X": "nd", "W": "df", "Y": "nf"}[matrix]
    owners: dict[tuple, list[int]] = {}
    for rank, box in enumerate(boxes):
        owners.setdefault(tuple(map(tuple, box)), []).append(rank)
    edges = [sorted({end for box in owners for end in box[axis]}) for axis in (0, 1)]
    cells = [[owners[rows, columns] for columns in pairwise(edges[1])] for rows in pairwise(edges[0])]
    right, up = (GAP * each for each in PLACES[matrix])
    hovers = [[f"{matrix}, {rows[0]}:{rows[1]} of {dims[0]}, {columns[0]}:{columns[1]} of {dims[1]}: on rank{'s' * (len(own) > 1)} {', '.join(map(str, own))}"
               for columns, own in zip(pairwise(edges[1]), row)] for rows, row in zip(pairwise(edges[0]), cells)]
    draw_cells(figure, [right + end / sizes[dims[1]] for end in edges[1]], [up + 1 - end / sizes[dims[0]] for end in edges[0]], cells, len(boxes), hovers, row=1, col=1)
    name = f"<b>{matrix}</b>[{dims[0]} {sizes[dims[0]]:,}, {dims[1]} {sizes[dims[1]]:,}]"
    figure.add_annotation(x=right + 0.5, y=up + 1.06, text=name, showarrow=False, font_size=12, row=1, col=1)


def draw_cells(figure: go.Figure, x: list, y: list, cells: list[list[list[int]]], ranks: int, hovers: list, numbered: bool = True, **cell) -> None:
    """Parts between these edges, each in the colour of its first rank, with the numbers of all that hold it."""
    figure.add_heatmap(
        x=x, y=y, z=[[own[0] for own in row] for row in cells], zmin=0, zmax=max(1, ranks - 1), showscale=False, xgap=2, ygap=2, opacity=0.75,
        colorscale=[[rank / max(1, ranks - 1), palette.version(rank)] for rank in range(max(2, ranks))],
        text=[[label(own, ranks) * numbered for own in row] for row in cells], texttemplate="%{text}", hoverinfo="text", hovertext=hovers, **cell)


def label(own: list[int], ranks: int) -> str:
    if ranks > NUMBERED:
        return ""
    return "all" if len(own) == ranks > 1 else " ".join(map(str, own))


def draw_compared(figure: go.Figure, compared: dict, chosen: str) -> None:
    """A bar a layout: bytes that a rank sends forward and backward; beside it time and memory."""
    names = list(reversed(compared))
    rows = [f"<b>▸ {name}</b>" if name == chosen else name for name in names]
    for at, (way, kind) in enumerate((("forward", "F"), ("backward", "B"))):
        figure.add_bar(y=rows, x=[compared[name][at] for name in names], orientation="h", name=f"sent {way}", marker=dict(color=palette.phase(kind), line_width=0),
                       hovertext=[f"{name}: {size(compared[name][at])} sent by each rank, {way}" for name in names], hoverinfo="text", width=0.62, row=1, col=2)
    for name, row in zip(names, rows):
        forward, backward, seconds, held = compared[name]
        told = f"{size(forward + backward)}, {duration(seconds, 's')}, holds {size(held)}"
        figure.add_annotation(x=forward + backward, y=row, text=f" <b>{told}</b>" if name == chosen else f" {told}", showarrow=False, xanchor="left",
                              font_size=11, row=1, col=2)
    most = max(forward + backward for forward, backward, *_ in compared.values())
    figure.update_xaxes(title="bytes that each rank sends; time; memory of a rank", showticklabels=False, showgrid=False, range=[0, 1.75 * most or 1], row=1, col=2)
    figure.update_yaxes(ticksuffix="  ", showgrid=False, row=1, col=2)
