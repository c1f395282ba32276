"""Which gradients travel beside the backward, and which the ranks wait for: the timeline with that
time marked."""

import plotly.graph_objects as go

from ...core import Trace
from ...core.words import duration
from ...order.rates import exposed, exposures
from .. import words
from ..palette import VERSIONS
from .timeline import timeline

WAIT = VERSIONS[5]


def overlap(trace: Trace) -> go.Figure:
    """Each rank's compute lane with the lane of its gradients below."""

    def time(amount):
        return duration(amount, trace.unit)

    figure = timeline(
        trace,
        title=(
            f"{trace.clock}: {time(trace.step_time)} a step, of which "
            f"{time(exposed(trace))} exposed communication"
        ),
    )
    _, factor = words.axis_unit(trace)
    begin = min((span.start for span in trace.spans()), default=0)
    waits = exposures(trace)
    long = [trace.units(end - start) for _, start, end in waits]
    figure.add_bar(
        y=[words.row_name((rank, "compute")) for rank, _, _ in waits],
        x=[each * factor for each in long],
        base=[trace.units(start - begin) * factor for _, start, _ in waits],
        orientation="h",
        name="exposed communication",
        showlegend=bool(waits),
        text=[*map(time, long)],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont_color="white",
        marker={"color": WAIT, "line": {"color": "white", "width": 1}},
        hovertext=[
            f"waits {time(each)} for what is on its way: nothing is left to compute"
            for each in long
        ],
        hoverinfo="text",
    )
    figure.update_layout(height=figure.layout.height + 24, margin_t=72)  # the legend is wide
    return figure
