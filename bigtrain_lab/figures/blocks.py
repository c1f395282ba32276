"""What a fused call takes on this machine, by the number of elements in a block: the edge of the cache."""

import plotly.graph_objects as go

from ..core import Scalar, Trace
from . import palette
from .timeline import look

BESIDE = {"eager call, s": ("eager", palette.PHASES["B"]), "compiled call, s": ("ours, as set", palette.PHASES["W"])}


def blocks(trace: Trace) -> go.Figure:
    """A point a block size, and eager beside it; both measured, so that a prediction has none."""
    found = {event.name: event.value for event in trace.where(Scalar)}
    points = {int(name.split()[1]): value for name, value in found.items() if name.startswith("block ")}
    figure = go.Figure()
    if points:
        figure.add_trace(go.Scatter(x=[*points], y=[1e3 * value for value in points.values()], name="forward, fused", mode="lines+markers",
                                    line=dict(color=palette.PHASES["F"], width=2), hovertemplate="blocks of %{x:,} elements: %{y:.3g} ms"))
        least = min(points, key=points.get)
        title = f"measured here: fastest with blocks of {least:,} elements"
        if not trace.settings.get("backward"):
            for name, (label, colour) in BESIDE.items():
                figure.add_hline(y=1e3 * found[name], line=dict(color=colour, dash="dash"), annotation_text=label)
    else:
        title = "a run of ours measures every block size here"
        figure.add_annotation(text="nothing is measured yet: press Run, with compiler = ours", showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    figure.add_vline(x=trace.settings.get("block", 0) or 1, line=dict(color=palette.INK, dash="dot"))
    figure.update_xaxes(title="elements in a block", type="log", range=[3.4, 7.1])
    figure.update_yaxes(title="ms a call", rangemode="tozero")
    figure.update_layout(**look(title, 280))
    figure.update_layout(showlegend=False)
    return figure
