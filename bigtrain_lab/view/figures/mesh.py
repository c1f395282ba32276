"""The cube of ranks: who talks to whom on which axis of the mesh, and what each axis costs."""

from itertools import chain

import plotly.graph_objects as go

from ...core import Mesh, Trace, duration, size
from ...order import axes
from .. import words
from ..palette import INK, VERSIONS
from .timeline import framed

AXES = {  # name -> its colour, and how far it moves a rank to the right and down
    "dp": (VERSIONS[0], (0.42, 0.38)),
    "pp": (VERSIONS[5], (1.0, 0.0)),
    "tp": (VERSIONS[2], (0.0, 1.0)),
}
SAID = {"dp": "average gradients", "pp": "pass activations on", "tp": "sum inside layers"}


def mesh(trace: Trace) -> go.Figure:
    """Ranks of Mesh(dp, pp, tp): stages to the right, slices downwards, replicas behind each
    other."""
    sizes = words.facts_of(trace, "mesh", "tells no mesh of dp, pp and tp", "combined")["mesh"]
    ranks = Mesh(**sizes)
    at = {rank: place(ranks.coords(rank)) for rank in range(ranks.size)}
    figure = go.Figure()
    for axis in axes(trace):
        lines = [
            (at[rank], at[ranks.rank(**own | {axis.name: own[axis.name] + 1})], (None, None))
            for rank in at
            if (own := ranks.coords(rank))[axis.name] + 1 < sizes[axis.name]
        ]
        x, y = zip(*chain(*lines)) if lines else ((None,), (None,))
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            name=(
                f"{axis.name} = {sizes[axis.name]}: {SAID[axis.name]},"
                f" {duration(axis.time, trace.unit)} and {size(round(axis.bytes))} a step"
            ),
            hoverinfo="skip",
            line={"color": AXES[axis.name][0], "width": 5},
        )
    x, y = zip(*at.values())
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers+text",
        text=[*map(str, at)],
        hovertext=[
            f"rank {rank}: "
            + ", ".join(f"{axis} {number}" for axis, number in ranks.coords(rank).items())
            for rank in at
        ],
        hoverinfo="text",
        showlegend=False,
        textfont={"size": 14, "color": "#111111"},
        marker={"size": 30, "color": "white", "line": {"color": INK, "width": 2}},
    )
    title = " x ".join(f"{axis} {count}" for axis, count in sizes.items())
    return framed(  # ranks to the left, the legend to the right
        figure,
        f"{trace.clock}: {title} = {trace.ranks} ranks",
        150 + 75 * round(max(y) - min(y)),
        xaxis={"visible": False, "range": [min(x) - 0.4, max(x) + 1.2 * (max(x) - min(x)) + 4]},
        yaxis={"visible": False, "range": [max(y) + 0.45, min(y) - 0.45]},
        legend={"orientation": "v", "y": 1, "yanchor": "top", "x": 1, "xanchor": "right"},
    )


def place(coords: dict[str, int]) -> tuple[float, float]:
    """Where a rank is drawn."""
    return tuple(
        sum(number * AXES[axis][1][way] for axis, number in coords.items()) for way in (0, 1)
    )
