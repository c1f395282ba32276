"""How deep a model fits in one memory, and what the depth costs: a point where each plan ends, and
the optimum's price as a line."""

from math import log10

import plotly.graph_objects as go

from .budgets import LINE, POINT
from .timeline import framed

STEEP = 4  # times the work of keep-all: from there on the axis is logarithmic


def drawing(
    ends: dict[str, tuple[int, float]], optimum: list[tuple[int, float]], memory: str
) -> go.Figure:
    """`ends`: plan -> (its deepest model, work beside keep-all's at that depth); `optimum`: the
    same for depths that it is asked for.

    A plan that ends at the deepest of those may go deeper: an arrow says so.
    """
    asked = max(d for d, _ in optimum)
    figure = go.Figure()
    base = ends.get("keep-all", optimum[0])[0]
    last = max((d for d, _ in ends.values() if d < asked), default=asked)  # named at the right
    figure.add_scatter(
        x=[d for d, _ in optimum],
        y=[w for _, w in optimum],
        mode="lines+markers",
        name="optimum of whole layers, in the same memory",
        line={"color": LINE, "width": 2.5},
        marker={"size": 6},
        hoverinfo="text",
        hovertext=[
            f"{d} layers, {d / base:g} times as deep: {w:.2f} times the work" for d, w in optimum
        ],
    )
    figure.add_scatter(
        x=[d for d, _ in ends.values()],
        y=[w for _, w in ends.values()],
        mode="markers+text",
        name="the deepest of a plan",
        marker={"size": 10, "color": POINT, "line": {"width": 1, "color": "white"}},
        text=[
            f"<b>{name}</b>" + (f"<br>{d} or more" if d >= asked else "")
            for name, (d, _) in ends.items()
        ],
        textposition=[
            (
                "bottom center"
                if w < 1.1
                else "middle left"
                if d >= asked
                else "top right"
                if d == last
                else "top left"
            )
            for d, w in ends.values()
        ],
        cliponaxis=False,
        hoverinfo="text",
        hovertext=[
            f"{name}: {d} layers{' or more' if d >= asked else ''}, {d / base:g} times as deep,"
            f" {w:.2f} times the work of keep-all there"
            for name, (d, w) in ends.items()
        ],
    )
    most = max(w for _, w in (*ends.values(), *optimum))
    steep = most > STEEP

    def up(work: float) -> float:
        return log10(work) if steep else work

    depths = sorted({d for d, _ in optimum})
    for d, w in ends.values():
        if d >= asked:
            figure.add_annotation(
                x=log10(d),
                y=up(w),
                ax=34,
                ay=0,
                axref="pixel",
                text="",
                arrowside="start",
                showarrow=True,
                arrowhead=2,
                arrowwidth=2,
                arrowcolor=POINT,
                startarrowhead=2,
            )
    return framed(
        figure,
        f"predicted: how deep a model fits into {memory}, by plan",
        340,
        margin={"l": 64, "r": 48, "t": 72, "b": 64},
        xaxis={
            "type": "log",
            "title": {"text": "layers (and times as deep as keep-all)"},
            "zeroline": False,
            "tickvals": depths,
            "ticktext": [f"{d}<br>{d / base:g}x" for d in depths],
        },
        yaxis={
            "type": "log" if steep else "linear",
            "range": [up(0.68 if steep else 0.86), up((1.2 if steep else 1.08) * most)],
            "zeroline": False,
            "title": {"text": "work of a step / keep-all"},
            "tickvals": [v for v in (1, 1.5, 2, 3, 5, 10, 20) if v < 1.2 * most] if steep else None,
        },
    )
