"""What a fused call takes on this machine, by the number of elements in a block: the edge of the
cache."""

from statistics import median

import plotly.graph_objects as go

from ...core import Scalar, Trace
from ...order import apart, samples
from .. import palette
from .timeline import framed

BESIDE = {
    "eager call, s": ("eager", palette.PHASES["B"]),
    "compiled call, s": ("ours, as set", palette.PHASES["W"]),
}


def blocks(trace: Trace) -> go.Figure:
    """A point a block size, and eager beside it; both measured, so that a prediction has none."""
    points = {
        int(name.split()[1]): samples(trace, name)
        for name in dict.fromkeys(event.name for event in trace.where(Scalar))
        if name.startswith("block ")
    }
    figure = go.Figure()
    if points:
        figure.add_trace(
            go.Scatter(
                x=[*points],
                y=[1e3 * median(taken) for taken in points.values()],
                name="forward, fused",
                mode="lines+markers",
                line={"color": palette.PHASES["F"], "width": 2},
                hovertemplate="blocks of %{x:,} elements: %{y:.3g} ms",
                error_y={
                    "array": [1e3 * (max(taken) - median(taken)) for taken in points.values()],
                    "arrayminus": [1e3 * (median(taken) - min(taken)) for taken in points.values()],
                },
            )
        )
        least = min(points, key=lambda block: median(points[block]))
        best = [block for block, taken in points.items() if apart(taken, points[least]) is None]
        title = f"measured here, median and spread of {len(points[least])} calls: " + (
            f"fastest with blocks of {least:,} elements"
            if len(best) == 1
            else f"no winner among {len(best)} sizes from {min(best):,} to {max(best):,} elements"
        )
        if not trace.settings.get("backward"):
            for name, (label, colour) in BESIDE.items():
                figure.add_hline(
                    y=1e3 * median(samples(trace, name)),
                    line={"color": colour, "dash": "dash"},
                    annotation_text=label,
                )
    else:
        title = "a run of ours measures every block size here"
        figure.add_annotation(
            text="nothing is measured yet: press Run, with compiler = ours",
            showarrow=False,
            x=0.5,
            y=0.5,
            xref="paper",
            yref="paper",
        )
    figure.add_vline(
        x=trace.settings.get("block", 0) or 1, line={"color": palette.INK, "dash": "dot"}
    )
    return framed(
        figure,
        title,
        280,
        showlegend=False,
        xaxis={"title": {"text": "elements in a block"}, "type": "log", "range": [3.4, 7.1]},
        yaxis={"title": {"text": "ms a call"}, "rangemode": "tozero"},
    )
