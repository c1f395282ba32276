"""How old the weights of each gradient were when a server applied it, and what the loss made of it.

A slow worker's gradients are few and old: a bar of their own far to the right. Hiccups make a tail.
"""

from collections import Counter
from statistics import mean

import plotly.graph_objects as go

from ...core import Trace
from ...order import applied
from .. import palette, words
from .timeline import framed

PATTERNS = ("", "/", "x", ".", "-", "|")


def staleness(trace: Trace) -> go.Figure:
    """The share of all updates by their staleness."""
    served = words.facts_of(trace, "served", "has no servers", "parameter-server")["served"]
    found = applied(trace, **served)
    figure = go.Figure()
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
        )
    most = max((each.staleness for each in found), default=0)
    old = (
        f"mean {mean(each.staleness for each in found):.3g}, worst {most}"
        if found
        else "no update yet"
    )
    return framed(
        figure,
        f"{trace.clock}: how stale updates are, {old}",
        330,
        barmode="stack",
        margin={"l": 64, "r": 16, "t": 66, "b": 44},
        legend_traceorder="normal",
        xaxis={
            "title": {"text": "staleness, in updates between read and apply", "standoff": 4},
            "range": [-0.6, max(most, 4) + 0.6],
            "dtick": max(1, most // 12),
            "zeroline": False,
        },
        yaxis={
            "title": {"text": "share of all updates"},
            "tickformat": ".0%",
            "rangemode": "tozero",
        },
    )
