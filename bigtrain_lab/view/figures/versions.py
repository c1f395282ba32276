"""Which weight version each forward and backward used: a backward in another colour than its
forward broke its gradient."""

import plotly.graph_objects as go

from ...core import Trace
from .timeline import timeline


def versions(trace: Trace, title: str | None = None) -> go.Figure:
    """The timeline coloured and labelled by weight version."""
    return timeline(
        trace,
        colour="version",
        title=title or f"{trace.clock}: weight version that each action used",
    )
