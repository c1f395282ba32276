"""Which part of each matrix of a layer lies on which rank, and which sums cross the ranks, and how
many bytes.

Matrices are drawn as they stand in x W, to scale but for long tables: a cut by columns is upright,
one by rows lies.
"""

from itertools import pairwise

import plotly.graph_objects as go

from ...core import Trace, refuse, size
from ...order import called, parts
from .. import palette
from .layouts import cut, draw_cells
from .timeline import framed

LONGEST = 4  # widths of the model, of a table: the MLP's matrices are as long
GAP = 0.8
LOW, THIN = 0.3, 0.2  # too thin for a number
TITLES = {
    "token": "embedding",
    "qkv": "queries, keys, values",
    "out": "attention's output",
    "up": "MLP: first",
    "down": "MLP: second",
    "logits": "logits",
}
WAYS = {"F": "forward", "B": "backward"}


def slices(trace: Trace) -> go.Figure:
    """From left to right as a token goes: the embedding, a layer's four matrices, the output."""
    held = parts(trace)
    refuse(
        (
            not held,
            "This trace knows no parts of matrices: take one of the experiment tensor-slicing.",
        )
    )
    figure, right, width, calls = go.Figure(), 0.0, trace.settings["width"], called(trace)
    for name, own in held.items():
        modules = (name.removesuffix(".weight"), *["cross-entropy"] * ("logits" in name))
        right += (
            draw_matrix(
                figure, right, own, trace.ranks, width, [c for c in calls if c.module in modules]
            )
            + GAP
        )
    colours = " ".join(f"{square(palette.version(rank))} {rank}" for rank in range(trace.ranks))
    figure.add_annotation(
        x=0.27,
        y=1,
        xref="paper",
        yref="paper",
        text=f"on rank {colours}",
        showarrow=False,
        xanchor="left",
    )
    return framed(
        figure,
        f"{trace.clock}: what lies where, and what each rank sends in a step",
        316,
        margin={"l": 8, "r": 8, "t": 40, "b": 8},
        xaxis={"visible": False, "range": [-GAP, right]},
        yaxis={"visible": False, "range": [-2.9, 2.7]},
    )


def square(colour: str) -> str:
    return f"<span style='color:{colour}'>■</span>"


def draw_matrix(
    figure: go.Figure, left: float, own: list, ranks: int, width: int, calls: list
) -> float:
    """A matrix whose left edge is here, its name above it and what travels for it below; how wide
    it is."""
    whole, is_table = own[0][1], "token" in own[0][1].name
    boxes = [
        (
            (rank, (p.top, p.bottom), (p.left, p.right))
            if is_table
            else (rank, (p.left, p.right), (p.top, p.bottom))
        )
        for rank, p in own
    ]
    sizes = (whole.height, whole.width) if is_table else (whole.width, whole.height)
    owners, (rows, columns), cells = cut((rank, box) for rank, *box in boxes)
    tall, wide = (min(long / width, LONGEST) for long in sizes)
    draw_cells(
        figure,
        [left + wide * end / sizes[1] for end in columns],
        [tall / 2 - tall * end / sizes[0] for end in rows],
        cells,
        ranks,
        hovers=[
            [
                f"{whole.name}: rows {a}:{b}, columns {c}:{d} of {sizes[0]} x {sizes[1]}<br>on rank"
                f" {', '.join(map(str, owners[(a, b), (c, d)]))}"
                for c, d in pairwise(columns)
            ]
            for a, b in pairwise(rows)
        ],
        numbered=tall / len(cells) > LOW and wide / len(cells[0]) > THIN,
    )
    module = whole.name.split(".")[-2]
    middle, lines = (
        left + wide / 2,
        [f"<b>{TITLES.get(module, module)}</b>", f"{sizes[0]:,} x {sizes[1]:,}"],
    )
    figure.add_annotation(
        x=middle,
        y=tall / 2,
        text="<br>".join(lines),
        showarrow=False,
        yanchor="bottom",
        font_size=11,
    )
    told = "<br>".join(
        f"{square(palette.phase(call.way))} {WAYS[call.way]}:"
        f" {f'{call.times:.0f} x ' * (call.times > 1)}{size(round(call.bytes / call.times))}"
        for call in calls
    )
    figure.add_annotation(
        x=middle, y=-tall / 2, text=told, showarrow=False, yanchor="top", font_size=11
    )
    return wide
