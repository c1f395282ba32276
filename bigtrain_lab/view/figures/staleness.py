"""How old the weights of each gradient were when a server applied it, and what the loss made of it.

A slow worker's gradients are few and old: a bar of their own far to the right. Hiccups make a tail.
"""

from collections import Counter
from statistics import mean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Scalar, Trace
from ...order import applied
from .. import palette, words
from .timeline import framed

POINTS = 40  # of the curve of losses, at most
PATTERNS = ("", "/", "x", ".", "-", "|")


def staleness(trace: Trace) -> go.Figure:
    """The share of all updates by their staleness; of a run also the loss over time, at the
    right."""
    served = words.facts_of(trace, "served", "has no servers", "parameter-server")["served"]
    found = applied(trace, **served)
    losses = [(event.start, event.value) for event in trace.where(Scalar, name="loss")]
    figure = make_subplots(rows=1, cols=2 if losses else 1, horizontal_spacing=0.1)
    for worker in range(len(served["requests"])):
        counts = Counter(each.staleness for each in found if each.worker == worker)
        figure.add_bar(
            x=[*counts],
            y=[count / len(found) for count in counts.values()],
            name=f"worker {worker}",
            hovertemplate=(
                f"worker {worker}: %{{y:.1%}} of all updates are stale by %{{x}}<extra></extra>"
            ),
            marker={
                "color": palette.VERSIONS[worker % len(palette.VERSIONS)],
                "line": {"color": "white", "width": 0.5},
                "pattern": {
                    "shape": PATTERNS[worker % len(PATTERNS)],
                    "fgcolor": "white",
                    "size": 5,
                    "solidity": 0.2,
                },
            },
            row=1,
            col=1,
        )
    if losses:
        draw_losses(figure, trace, losses)
    most = max((each.staleness for each in found), default=0)
    old = (
        f"mean {mean(each.staleness for each in found):.3g}, worst {most}"
        if found
        else "no update yet"
    )
    figure.update_xaxes(
        title={"text": "staleness, in updates between read and apply", "standoff": 4},
        range=[-0.6, max(most, 4) + 0.6],
        dtick=max(1, most // 12),
        zeroline=False,
        col=1,
    )
    figure.update_yaxes(title="share of all updates", tickformat=".0%", rangemode="tozero", col=1)
    return framed(
        figure,
        f"{trace.clock}: how stale updates are, {old}",
        330,
        barmode="stack",
        margin={"l": 64, "r": 16, "t": 66, "b": 44},
        legend_traceorder="normal",
    )


def draw_losses(figure: go.Figure, trace: Trace, losses: list[tuple[int, float]]) -> None:
    unit, factor = words.axis_unit(trace)
    each = max(1, -(-len(losses) // POINTS))
    groups = [losses[at : at + each] for at in range(0, len(losses) - each + 1, each)]
    figure.add_scatter(
        x=[trace.units(group[-1][0]) * factor for group in groups],
        y=[mean(value for _, value in group) for group in groups],
        mode="lines+markers",
        marker_size=4,
        line={"color": palette.INK, "width": 2},
        showlegend=False,
        hovertemplate=f"%{{x:.3g}} {unit}: %{{y:.3f}}<extra>mean of {each} losses</extra>",
        row=1,
        col=2,
    )
    figure.update_xaxes(
        title={"text": f"time ({unit})", "standoff": 4},
        zeroline=False,
        range=[0, trace.makespan * factor],
        col=2,
    )
    figure.update_yaxes(title=f"loss, mean of {each}", rangemode="tozero", col=2)
