"""Where the model is cut: each piece's share of the work, the stages that they make, and what a
step costs by other cuts.

Narrow bars are the pieces, by the profile; the wide one behind is their stage, as long as the trace
says that it took.
"""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Trace, duration, refuse
from ...order import stage_shares
from .. import palette, words
from .timeline import framed

LABEL = 0.15  # height of a stage's label, as a share of the picture's


def profile(trace: Trace) -> go.Figure:
    """Two pictures side by side: pieces and stages, as shares of a micro-batch's work; and the
    predicted step of each cut."""
    facts = words.facts_of(trace, "cuts", "knows no profile of its model", "partition")
    refuse(
        (
            trace.settings.get("unfinished"),
            "A run that is not done has no times of whole stages: see predicted.",
        )
    )
    cuts, chosen = facts["cuts"], facts["chosen"]
    figure = make_subplots(cols=2, column_widths=[0.64, 0.36], horizontal_spacing=0.12)
    draw_stages(figure, trace, facts["pieces"], cuts[chosen]["sizes"])
    draw_cuts(figure, cuts, chosen, trace.settings["facts"]["unit"])
    return framed(
        figure,
        f"{trace.clock}: what each piece and each stage takes",
        330,
        margin={"l": 56, "r": 16, "t": 44, "b": 44},
        showlegend=False,
    )


def draw_stages(figure: go.Figure, trace: Trace, pieces: list, sizes: list[int]) -> None:
    """Left: bars in the colour of their stage, on one scale of shares; the dashed line is a perfect
    share."""
    whole, unit = sum(time for _, time in pieces), trace.settings["facts"]["unit"]
    stages, perfect = stage_shares(trace, len(sizes)), 1 / len(sizes)
    top = 1.28 * max(perfect, *(share for _, share in stages))
    first = 0
    for stage, size in enumerate(sizes):
        colour, (time, share) = palette.version(stage), stages[stage]
        figure.add_bar(
            x=[first + (size - 1) / 2],
            y=[share],
            width=size - 0.06,
            marker={"color": colour, "opacity": 0.22, "line_width": 0},
            hovertext=(
                f"stage {stage}: {share:.1%} of the work, {duration(time, trace.unit)} a"
                " micro-batch"
            ),
            hoverinfo="text",
            row=1,
            col=1,
        )
        above = (
            perfect if perfect - LABEL * top < share < perfect else share
        )  # the dashed line crosses no label
        figure.add_annotation(
            x=first + (size - 1) / 2,
            y=above,
            yanchor="bottom",
            text=f"stage {stage}<br><b>{share:.0%}</b>",
            showarrow=False,
            font_size=12,
            row=1,
            col=1,
        )
        own = pieces[first : first + size]
        figure.add_bar(
            x=list(range(first, first + size)),
            y=[time / whole for _, time in own],
            width=0.62,
            marker={"color": colour, "line_width": 0},
            hovertext=[
                f"{name}: {time / whole:.1%} of the work, {duration(time, unit)}"
                for name, time in own
            ],
            hoverinfo="text",
            row=1,
            col=1,
        )
        first += size
    figure.add_hline(
        y=perfect, line={"dash": "dash", "width": 1.5, "color": palette.TRANSFER}, row=1, col=1
    )
    names = [short(name) for name, _ in pieces] if len(pieces) <= 24 else ["" for _ in pieces]
    figure.update_xaxes(
        tickvals=list(range(len(pieces))),
        ticktext=names,
        tickangle=0,
        showgrid=False,
        row=1,
        col=1,
        title=f"pieces of the model; dashed: a perfect share, {perfect:.0%}",
    )
    figure.update_yaxes(tickformat=".0%", range=[0, top], row=1, col=1)


def draw_cuts(figure: go.Figure, cuts: dict, chosen: str, unit: str) -> None:
    """Right: the predicted step time of each cut, the chosen one dark."""
    names = list(reversed(cuts))
    figure.add_bar(
        y=names,
        x=[cuts[name]["step_time"] for name in names],
        orientation="h",
        width=0.6,
        marker={
            "color": [
                palette.CLOCKS["predicted"] if name == chosen else palette.TRANSFER
                for name in names
            ],
            "line_width": 0,
        },
        text=[
            f"{duration(cuts[name]['step_time'], unit)}, {cuts[name]['idle']:.0%} idle"
            for name in names
        ],
        textposition="auto",
        insidetextfont_color="white",
        cliponaxis=False,
        hovertext=[
            f"{name}: stages of {', '.join(map(str, cuts[name]['sizes']))} pieces" for name in names
        ],
        hoverinfo="text",
        row=1,
        col=2,
    )
    figure.update_xaxes(
        title="a step, predicted, by the cut", showticklabels=False, showgrid=False, row=1, col=2
    )
    figure.update_yaxes(ticksuffix="  ", showgrid=False, row=1, col=2)


def short(name: str) -> str:
    return {"embedding": "emb"}.get(name, name.removeprefix("block "))
