"""What runs of equal samples learn: the loss of the training, the loss and the accuracy on held-out
samples, by passes over the data."""

from collections.abc import Iterable

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Trace, refuse
from ...order import ACCURACY, TEST_LOSS, samples
from .. import palette
from .timeline import framed

DASHES = ("solid", "dash", "dot", "dashdot")


def learning(traces: Iterable[Trace]) -> go.Figure:
    """Of one run, or of several beside each other, each named by what it does otherwise than the
    others, with its accuracy at the end."""
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    refuse(
        (
            not traces
            or any("evaluated" not in trace.settings.get("facts", {}) for trace in traces),
            "This trace knows no accuracy: take runs of the experiment large-batch.",
        ),
        (
            not any(samples(trace, ACCURACY) for trace in traces),
            "What is learnt cannot be predicted: a run shows its loss and its accuracy here.",
        ),
    )
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.08)
    for number, (trace, name) in enumerate(zip(traces, names(traces))):
        draw(figure, trace, name, number)
    for target in {trace.settings["target"] for trace in traces}:
        figure.add_hline(
            y=target, line={"dash": "dot", "width": 1, "color": palette.INK}, row=1, col=2
        )
    figure.update_xaxes(
        title={"text": "passes over the data", "standoff": 4}, rangemode="tozero", zeroline=False
    )
    figure.update_yaxes(title="loss: held out, and thin of the training", rangemode="tozero", col=1)
    figure.update_yaxes(
        title="accuracy, held-out samples", tickformat=".0%", range=[0, 1.02], col=2
    )
    return framed(
        figure,
        f"{traces[0].clock}: what runs of equal samples learn",
        330,
        margin={"l": 56, "r": 16, "t": 66, "b": 44},
    )


def draw(figure: go.Figure, trace: Trace, name: str, number: int) -> None:
    facts, several = trace.settings["facts"], trace.settings["batch"]
    colour, dash = (
        palette.VERSIONS[number % len(palette.VERSIONS)],
        DASHES[number // len(palette.VERSIONS) % len(DASHES)],
    )
    trained = by_update(trace)
    figure.add_scatter(
        x=[(update + 1) * several / facts["pass"] for update in range(len(trained))],
        y=trained,
        mode="lines",
        name=name,
        showlegend=False,
        line={"color": colour, "width": 1},
        opacity=0.45,
        legendgroup=name,
        hovertemplate="pass %{x:.3g}: loss %{y:.3f}<extra>training</extra>",
        row=1,
        col=1,
    )
    for column, what in ((1, TEST_LOSS), (2, ACCURACY)):
        found = samples(trace, what)
        figure.add_scatter(
            x=[update * several / facts["pass"] for update in facts["evaluated"][: len(found)]],
            y=found,
            mode="lines+markers",
            name=name,
            legendgroup=name,
            showlegend=column == 1,
            line={"color": colour, "width": 2, "dash": dash},
            marker_size=5,
            hovertemplate=f"pass %{{x:.3g}}: {what} %{{y:.3g}}<extra>{name}</extra>",
            row=1,
            col=column,
        )


def by_update(trace: Trace) -> list[float]:
    """The mean of all losses of each update; nothing of the last one where a run ended within
    it."""
    found = samples(trace, "loss")
    each = max(1, round(len(found) / trace.steps))
    return [sum(found[at : at + each]) / each for at in range(0, len(found) - each + 1, each)]


def names(traces: list[Trace]) -> list[str]:
    """By the settings in which they differ, and what each came to."""
    shown = [
        what
        for what in ("optimizer", "batch", "scaling", "learning_rate", "seed")
        if len({trace.settings.get(what) for trace in traces}) > 1
    ]
    told = [
        ", ".join(
            f"{trace.settings[what]:,}" if what == "batch" else str(trace.settings[what])
            for what in shown or ["optimizer"]
        )
        for trace in traces
    ]
    return [
        name + (f": {found[-1]:.1%}" if (found := samples(trace, ACCURACY)) else "")
        for name, trace in zip(told, traces)
    ]
