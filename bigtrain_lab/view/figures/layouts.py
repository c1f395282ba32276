"""Which part of each matrix lies on which rank.

The matrices lie as in a product by hand: X left of Y, W above it. A part's number is its rank;
several hold duplicates.
"""

from collections.abc import Iterable
from itertools import pairwise

import plotly.graph_objects as go

from ...core import Trace, grouped
from .. import palette, words
from .timeline import framed

NUMBERED = 16  # ranks: beyond, numbers are too small to be read
MATRICES = {"X": ("nd", 0, 0), "W": ("df", 1, 1), "Y": ("nf", 1, 0)}  # dimensions, right, up
GAP = 1.16  # from a matrix to the next


def layouts(trace: Trace) -> go.Figure:
    """The parts of X, W and Y."""
    facts = words.facts_of(trace, "boxes", "knows no layouts", "layouts")
    figure = go.Figure()
    for matrix, boxes in facts["boxes"].items():
        draw_parts(figure, matrix, boxes, facts["sizes"])
    figure.update_xaxes(visible=False, range=[-0.2, 1 + GAP])
    figure.update_yaxes(visible=False, range=[-0.06, 1.12 + GAP])
    return framed(
        figure,
        f"{facts['layout']}: the parts of {len(facts['boxes']['X'])} ranks",
        360,
        margin={"l": 8, "r": 16, "t": 72, "b": 44},
    )


def draw_parts(figure: go.Figure, matrix: str, boxes: list, sizes: dict) -> None:
    """A matrix as a square, cut where its parts end. `boxes`: of each rank, (start, stop) of its
    rows and of its columns."""
    (down, across), right, up = MATRICES[matrix]
    owners, (rows, columns), cells = cut(enumerate(boxes))
    draw_cells(
        figure,
        [GAP * right + end / sizes[across] for end in columns],
        [GAP * up + 1 - end / sizes[down] for end in rows],
        cells,
        len(boxes),
        hovers=[
            [
                f"{matrix}, {above[0]}:{above[1]} of {down}, {left[0]}:{left[1]} of {across}: "
                f"on rank{'s' * (len(owners[above, left]) > 1)} "
                f"{', '.join(map(str, owners[above, left]))}"
                for left in pairwise(columns)
            ]
            for above in pairwise(rows)
        ],
    )
    figure.add_annotation(
        x=GAP * right + 0.5,
        y=GAP * up + 1.06,
        showarrow=False,
        font_size=12,
        text=f"<b>{matrix}</b>[{down} {sizes[down]:,}, {across} {sizes[across]:,}]",
    )


def cut(boxes: Iterable[tuple[int, Iterable]]) -> tuple[dict, list[list[int]], list[list]]:
    """Of (rank, (start, stop) each way): who holds each box, where the cuts are each way, and the
    holders cell by cell."""
    owners = grouped((tuple(map(tuple, box)), rank) for rank, box in boxes)
    ends = [sorted({end for box in owners for end in box[way]}) for way in (0, 1)]
    rows, columns = map(list, map(pairwise, ends))
    return owners, ends, [[owners[row, column] for column in columns] for row in rows]


def draw_cells(
    figure: go.Figure,
    x: list,
    y: list,
    cells: list[list[list[int]]],
    ranks: int,
    hovers: list,
    numbered: bool = True,
    **cell,
) -> None:
    """Parts between these edges, each in the colour of its first rank, with the numbers of all that
    hold it."""
    most = max(1, ranks - 1)
    figure.add_heatmap(
        x=x,
        y=y,
        z=[[own[0] for own in row] for row in cells],
        zmin=0,
        zmax=most,
        showscale=False,
        colorscale=[[rank / most, palette.version(rank)] for rank in range(most + 1)],
        text=[[label(own, ranks) * numbered for own in row] for row in cells],
        hovertext=hovers,
        texttemplate="%{text}",
        hoverinfo="text",
        xgap=2,
        ygap=2,
        opacity=0.75,
        **cell,
    )


def label(own: list[int], ranks: int) -> str:
    if ranks > NUMBERED:
        return ""
    return "all" if len(own) == ranks > 1 else " ".join(map(str, own))
