"""The same run on several clocks, one above the other; clocks of one unit share their time axis."""

from collections.abc import Iterable

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Trace, refuse
from .. import words
from .timeline import draw_rows, framed, heading

BETWEEN = 48  # pixels from picture to picture: the ticks of one, the heading of the next


def compare(traces: Iterable[Trace]) -> go.Figure:
    """Timelines under each other, in the order given."""
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    refuse((not traces, "There is nothing to compare: give at least one trace."))
    heights = [len(words.rows_of(trace)) for trace in traces]
    height = 90 * len(traces) + 34 * sum(heights) + 40
    figure = make_subplots(
        rows=len(traces),
        cols=1,
        row_heights=heights,
        subplot_titles=[heading(t) for t in traces],
        vertical_spacing=min(0.24, BETWEEN / (height - 92)),
    )
    for row, trace in enumerate(traces, 1):
        draw_rows(figure, trace, row=row, col=1)
        caption = (
            f"time ({words.axis_unit(trace)[0]})" if row == len(traces) else None
        )  # each heading tells its own unit
        first = next(
            i
            for i, other in enumerate(traces, 1)
            if words.axis_unit(other) == words.axis_unit(trace)
        )
        alike = f"x{first if first > 1 else ''}" if first < row else None
        figure.update_xaxes(title=caption, rangemode="tozero", matches=alike, row=row, col=1)
    return framed(figure, "", height, legend={"y": 1 + 36 / (height - 92)})
