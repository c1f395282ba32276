"""The published translator's log, replayed epoch by epoch: where its seconds went, who decided, how
the rate went."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...data.published import PUBLISHED_LOG, Log
from .. import palette
from .timeline import framed

COLOURS = "#E69F00", "#332288", "#0072B2", palette.IDLE
POINTS = 20  # of the rate's curve, an epoch


def replay(log: Log = PUBLISHED_LOG) -> go.Figure:
    """Above the seconds of an epoch, below the learning rate and the ranks' scores; a slider goes
    through the epochs."""
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{"colspan": 2}, None], [{}, {}]],
        row_heights=[0.25, 0.75],
        column_widths=[0.68, 0.32],
        vertical_spacing=0.2,
        horizontal_spacing=0.1,
        subplot_titles=(
            f"one epoch of {log.epoch_s:.0f} s",
            "learning rate",
            "BLEU that each rank saw",
        ),
    )
    spent = (*log.seconds, ("not told", log.epoch_s - sum(dict(log.seconds).values())))
    for (what, seconds), colour in zip(spent, COLOURS):
        figure.add_bar(
            x=[seconds],
            y=["seconds"],
            orientation="h",
            marker_color=colour,
            text=f"{what}<br>{seconds:.0f} s" if seconds > 20 else "",
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont_color=palette.ink(colour),
            hovertext=f"{what}: {seconds:.0f} s, {seconds / log.epoch_s:.0%}",
            hoverinfo="text",
            row=1,
            col=1,
        )
    epochs = [max(1, i) / POINTS for i in range(log.last * POINTS + 1)]
    figure.add_scatter(
        x=epochs,
        y=[log.rate(max(1, round(each * log.updates))) for each in epochs],
        mode="lines",
        line={"color": "#0072B2", "width": 2.5},
        hovertemplate="epoch %{x:.2f}<br>rate %{y:.3e}<extra></extra>",
        row=2,
        col=1,
    )
    marker = len(figure.data)
    figure.add_scatter(
        x=[1],
        y=[log.rate(log.updates + 1)],
        mode="markers",
        marker={"size": 12, "color": "#D55E00", "line": {"width": 1, "color": "white"}},
        hoverinfo="skip",
        row=2,
        col=1,
    )
    for at, text in (
        (log.warm_up_epochs, f"warm-up ends<br>{log.warm_up_epochs:.2f}"),
        (log.best, f"best<br>BLEU {log.best_bleu}"),
        (log.last, f"stop: {log.best} + {log.patience}"),
    ):
        figure.add_vline(
            x=at, line={"dash": "dot", "width": 1.5, "color": palette.TRANSFER}, row=2, col=1
        )
        figure.add_annotation(
            x=at,
            y=1,
            yref="y2 domain",
            text=text,
            showarrow=False,
            font_size=11,
            xanchor="left" if at < log.last else "right",
            yanchor="top",
            xshift=4 if at < log.last else -4,
            row=2,
            col=1,
        )
    figure.add_bar(
        x=[f"rank {rank}" for rank in range(log.ranks)],
        y=log.thirds,
        text=[f"{each:.2f}" for each in log.thirds],
        textposition="outside",
        marker_color=["#D55E00", *[palette.IDLE] * (log.ranks - 1)],
        hovertext=["its third decided", *["was not asked"] * (log.ranks - 1)],
        hoverinfo="text",
        cliponaxis=False,
        row=2,
        col=2,
    )
    figure.frames = [
        go.Frame(
            name=str(epoch),
            traces=[marker],
            data=[go.Scatter(x=[epoch], y=[log.rate(epoch * log.updates + 1)])],
            layout={"title_text": told(log, epoch)},
        )
        for epoch in range(1, log.last + 1)
    ]
    slide = {
        "mode": "immediate",
        "frame": {"duration": 700, "redraw": True},
        "transition": {"duration": 0},
    }
    figure.update_xaxes(range=[0, log.epoch_s], row=1, col=1)
    figure.update_yaxes(showticklabels=False, row=1, col=1)
    figure.update_xaxes(title_text="epoch", range=[0, log.last + 0.3], dtick=2, row=2, col=1)
    figure.update_yaxes(exponentformat="e", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(range=[0, 1.25 * max(log.thirds)], row=2, col=2)
    return framed(
        figure,
        told(log, 1),
        470,
        barmode="stack",
        showlegend=False,
        margin={"l": 64, "r": 16, "t": 72, "b": 72},
        sliders=[
            {
                "y": -0.1,
                "len": 0.86,
                "x": 0.14,
                "currentvalue": {"visible": False},
                "pad": {"t": 16},
                "steps": [
                    {"label": frame.name, "method": "animate", "args": [[frame.name], slide]}
                    for frame in figure.frames
                ],
            }
        ],
        updatemenus=[
            {
                "type": "buttons",
                "direction": "left",
                "y": -0.1,
                "x": 0.12,
                "pad": {"t": 26},
                "showactive": False,
                "buttons": [
                    {
                        "label": "play",
                        "method": "animate",
                        "args": [None, slide | {"fromcurrent": True}],
                    },
                    {
                        "label": "pause",
                        "method": "animate",
                        "args": [
                            [None],
                            {"mode": "immediate", "frame": {"duration": 0, "redraw": False}},
                        ],
                    },
                ],
            }
        ],
    )


def told(log: Log, epoch: int) -> str:
    """What is known after an epoch."""
    rate = f"epoch {epoch}: learning rate {log.rate(epoch * log.updates + 1):.3e}"
    if epoch == log.best:
        return f"{rate}, the best BLEU, {log.best_bleu}"
    if epoch > log.best:
        stop = ": the run stops" if log.waited(epoch) == log.patience else ""
        return f"{rate}, no better for {log.waited(epoch)} of {log.patience} epochs{stop}"
    return f"{rate}, {'still warming up' if epoch < log.warm_up_epochs else 'falling'}"
