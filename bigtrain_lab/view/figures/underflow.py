"""What part of the gradients each format would turn into 0, as training goes: a line a format, and
the loss scale as a slider."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Trace, refuse
from ...core.formats import looks
from .exponents import SCALES, SHOWN, of_scales, percent, prefix
from .timeline import framed

LINES = {
    "fp16": ("#0072B2", "solid", "circle"),
    "bf16": ("#009E73", "dot", "diamond"),
    "fp8 e5m2": ("#E69F00", "dash", "square"),
    "fp8 e4m3": ("#CC79A7", "dashdot", "x"),
}


def underflow(trace: Trace) -> go.Figure:
    """Of the histograms that `exponents` draws together: a point for each look, left activations'
    gradients, right weights'."""
    found = {kind: several for kind, several in looks(trace).items() if several}
    refuse(
        (
            not found,
            "This trace holds no histograms of gradients: a run makes them, in the steps in which"
            " it looks at its gradients.",
        )
    )
    figure = make_subplots(
        rows=1,
        cols=len(found),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        column_titles=[f"{kind}s" for kind in found],
    )
    every = trace.settings.get("every", 1)
    steps_at = [number * every for number in range(max(map(len, found.values())))]
    for column, several in enumerate(found.values(), 1):
        for name, lines in zip(SHOWN, lost(several, 0)):
            colour, dash, symbol = LINES[name]
            figure.add_trace(
                go.Scatter(
                    x=steps_at[: len(several)],
                    y=lines,
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    mode="lines+markers",
                    line={"color": colour, "dash": dash, "width": 2},
                    marker={"symbol": symbol, "size": 7},
                    hovertemplate=f"{name}: %{{y:.2%}} become 0",
                ),
                row=1,
                col=column,
            )
    steps = [
        {
            "method": "restyle",
            "label": f"{2**s:,}",
            "args": [
                {"y": [line for several in found.values() for line in lost(several, s)]},
                list(range(len(figure.data))),
            ],
        }
        for s in SCALES
    ]
    most = max(
        max(line) for several in found.values() for line in lost(several, 0)
    )  # a larger scale loses less
    late = " and ".join(
        f"{percent(several[-1].shares('fp16').zero)} of {kind}s" for kind, several in found.items()
    )
    figure.update_xaxes(
        title={"text": "training step" if "every" in trace.settings else "look", "standoff": 4},
        tickvals=steps_at[:: -(-len(steps_at) // 12)],
    )
    top = max(min(1.15 * most, 1.03), 0.001) if most else 1
    figure.update_yaxes(
        range=[-0.04 * top, top],
        tickformat=".2~%",
        rangemode="tozero",
        showticklabels=False,
        **({} if most else {"tickvals": [0]}),
    )
    figure.update_yaxes(showticklabels=True, title={"text": "becomes 0", "standoff": 2}, col=1)
    if not most:
        figure.add_annotation(
            text="nothing becomes 0, in none of these formats, at no loss scale from 1 on",
            x=0.5,
            y=0.5,
            xref="paper",
            yref="paper",
            showarrow=False,
        )
    figure.update_annotations(font_size=12)
    return framed(
        figure,
        f"{trace.clock}, last look: fp16 zeroes {late}",
        400,
        autosize=True,
        hovermode="x unified",
        margin={"l": 8, "r": 12, "t": 84, "b": 112},
        legend={"y": 1.14},
        sliders=[of_scales(steps, prefix(trace))],
    )


def lost(several: list, log2_scale: int) -> list[list[float]]:
    """For each format shown, the share that becomes 0 at each look."""
    return [[counted.shares(name, log2_scale).zero for counted in several] for name in SHOWN]
