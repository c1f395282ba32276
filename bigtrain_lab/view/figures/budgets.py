"""What memory buys: every recompute plan as a point, the peak of its saved activations against its
work, and as a line the optimum of those that the recursion knows (optimum.py: a state
stays until its own backward; where layers are alike no plan is better).

The line ends left in the least memory that any plan that runs whole layers again needs, and right
where all is kept. A bracket tells how much more memory a plan takes than the line does for that
work. What lies below the line recomputes inside layers (selective), or was found by the search that
short chains allow. The chosen plan is ringed.
"""

from math import log10

import plotly.graph_objects as go

from ...core import Trace, grouped, size
from ...order.recompute.plan import Recompute
from .. import palette, words
from .timeline import framed

LINE, POINT, CHOSEN, INSIDE = (
    palette.VERSIONS[0],
    palette.VERSIONS[5],
    palette.VERSIONS[2],
    palette.VERSIONS[3],
)
SEEN = 0.05  # of memory beyond the line: a shorter bracket is not drawn, only told


def budgets(trace: Trace) -> go.Figure:
    """Logarithmic both ways: bytes, and how many times the work of keep-all."""
    facts = words.facts_of(trace, "frontier", "knows no recompute plans", "checkpoint")
    whole = facts["everything"]
    memory, work = zip(*facts["frontier"])
    figure = go.Figure()
    figure.add_scatter(
        x=memory,
        y=work,
        mode="lines",
        line={"color": LINE, "width": 2.5, "shape": "hv"},
        name="optimum of the recursion",
        hovertext=[told("optimum", m, w, whole) for m, w in zip(memory, work)],
        hoverinfo="text",
    )
    inside = {
        name: at
        for name, at in facts["plans"].items()
        if name in Recompute.all() and Recompute.all()[name].inside
    }
    points = grouped((tuple(at), name) for name, at in facts["plans"].items() if name not in inside)
    gaps = {at: gap for at in points if (gap := beyond(*at, facts["frontier"])) > 0.005}
    figure.add_scatter(
        x=[m for m, _ in points],
        y=[w for _, w in points],
        mode="markers+text",
        name="a plan without a budget",
        marker={"size": 10, "color": POINT, "line": {"width": 1, "color": "white"}},
        cliponaxis=False,
        text=[f"<b>{', '.join(names)}</b>" for names in points.values()],
        textposition=places(list(points), facts["frontier"]),
        hovertext=[
            told(", ".join(names), *at, whole)
            + (f"<br>{gaps[at]:.0%} more memory than the line at that work" if at in gaps else "")
            for at, names in points.items()
        ],
        hoverinfo="text",
    )
    figure.add_scatter(
        x=[facts["here"][0]],
        y=[facts["here"][1]],
        mode="markers",
        name=f"chosen: {facts['chosen']}",
        marker={
            "size": 18,
            "symbol": "circle-open",
            "color": CHOSEN,
            "line": {"width": 3, "color": CHOSEN},
        },
        hovertext=told(facts["chosen"], *facts["here"], whole),
        hoverinfo="text",
    )
    if wide := {at: gap for at, gap in gaps.items() if gap > SEEN}:
        draw_gaps(figure, wide)
    if inside:
        figure.add_scatter(
            x=[m for m, _ in inside.values()],
            y=[w for _, w in inside.values()],
            mode="markers+text",
            name="inside layers",
            showlegend=False,
            marker={"size": 11, "symbol": "diamond", "color": INSIDE},
            text=[f"<b>{name}</b> (inside layers)" for name in inside],
            textposition="bottom left",
            cliponaxis=False,
            hovertext=[told(name, *at, whole) for name, at in inside.items()],
            hoverinfo="text",
        )
    if facts["budget"]:
        figure.add_vline(
            x=facts["budget"], line={"dash": "dot", "width": 1.5, "color": palette.TRANSFER}
        )
        figure.add_annotation(
            x=log10(facts["budget"]),
            y=1,
            yref="paper",
            text=f"budget {size(facts['budget'])}",
            font_size=11,
            showarrow=False,
            xanchor="left",
            yanchor="top",
        )
    everywhere = [*memory, *(m for m, _ in facts["plans"].values())]
    lowest, highest = min(everywhere), max(everywhere)
    ticks = marks(lowest, highest)
    most = max(*work, *(w for _, w in facts["plans"].values()))
    rows = [v for v in (1, 1.33, 1.67, 2, 3, 5, 10, 20) if v <= 1.2 * most]
    return framed(
        figure,
        f"{trace.clock}: what memory buys, by plan",
        360,
        margin={"l": 64, "r": 24, "t": 72, "b": 48},
        xaxis={
            "type": "log",
            "title": {"text": "peak of saved activations"},
            "tickvals": ticks,
            "ticktext": [size(t) for t in ticks],
            "zeroline": False,
        },
        yaxis={
            "type": "log",
            "range": [log10(0.74), log10(1.12 * most)],
            "title": {"text": "work of a step / keep-all"},
            "tickvals": rows,
            "ticktext": [f"{v:g}" for v in rows],
            "zeroline": False,
        },
    )


def beyond(memory: float, work: float, frontier: list) -> float:
    """How much more memory a plan takes than the line does for no more work, as a share."""
    return memory / min((m for m, w in frontier if w <= work * (1 + 1e-9)), default=memory) - 1


def draw_gaps(figure: go.Figure, gaps: dict[tuple, float]) -> None:
    """A bracket from the line to each plan, at the plan's work."""
    figure.add_scatter(
        x=[end for (m, _), above in gaps.items() for end in (m / (1 + above), m, None)],
        y=[y for _, w in gaps for y in (w, w, None)],
        mode="lines+markers",
        name="memory above the line's",
        line={"color": POINT, "width": 3},
        marker={"symbol": "line-ns", "size": 12, "line": {"color": POINT, "width": 2}},
        hoverinfo="skip",
    )
    for (m, w), gap in gaps.items():
        figure.add_annotation(
            x=log10(m / (1 + gap) ** 0.5),
            y=log10(w),
            text=f"<b>+{gap:.0%}</b>",
            font={"size": 11, "color": POINT},
            showarrow=False,
            yshift=14,
            xanchor="center",
        )


def places(points: list[tuple], frontier: list) -> list[str]:
    """Where each label stands: above what lies above the line, else below; below, too, where a
    neighbour's is above."""
    found: list[str] = []
    for at, (memory, work) in enumerate(points):
        best = min((w for m, w in frontier if m <= memory), default=work)
        near = any(abs(memory / m - 1) < 0.2 and abs(work / w - 1) < 0.2 for m, w in points[:at])
        found.append("bottom center" if work <= best else "bottom right" if near else "top right")
    return found


def marks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... within the range."""
    power = 10 ** (len(str(int(low))) - 1)
    found = [step * power * 10**k for k in range(8) for step in (1, 2, 5)]
    return [each for each in found if low / 1.3 <= each <= high * 1.3]


def told(name: str, memory: float, work: float, whole: float) -> str:
    return (
        f"<b>{name}</b><br>{size(memory)} kept at most, {memory / whole:.1%} of"
        f" keep-all<br>{work:.3g} times its work"
    )
