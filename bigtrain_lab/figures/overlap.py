"""Which gradients travel beside the backward, and which the ranks wait for: the timeline with that time marked."""

import plotly.graph_objects as go

from ..core import Trace
from ..rates import exposed, exposures
from ..words import duration
from . import words
from .palette import VERSIONS
from .timeline import row_name, timeline

WAIT = VERSIONS[5]


def overlap(trace: Trace) -> go.Figure:
    """Each rank's compute lane with the lane of its gradients below."""
    figure = timeline(trace, title=f"{trace.clock}: {duration(trace.step_time, trace.unit)} a step, of which "
                                   f"{duration(exposed(trace), trace.unit)} exposed communication")
    _, factor = words.axis_unit(trace)
    begin = min((span.start for span in trace.spans()), default=0)
    waits = exposures(trace)
    told = [duration(trace.units(end - start), trace.unit) for _, start, end in waits]
    figure.add_bar(
        y=[row_name((rank, "compute")) for rank, _, _ in waits], x=[trace.units(end - start) * factor for _, start, end in waits],
        base=[trace.units(start - begin) * factor for _, start, _ in waits], orientation="h", name="exposed communication",
        showlegend=bool(waits), text=told, textposition="inside", insidetextanchor="middle", textangle=0, insidetextfont_color="white",
        marker=dict(color=WAIT, line=dict(color="white", width=1)), hoverinfo="text",
        hovertext=[f"waits {time} for gradients: nothing is left to compute" for time in told])
    return figure
