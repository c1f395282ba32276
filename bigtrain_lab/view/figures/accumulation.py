"""What a token counts in each micro-batch of a window, and how far that takes the gradient from the
large batch's.

Left, the tokens of a window one after the other: by the large batch all are equally high, by the
mean of means all micro-batches have equal areas. Beside them, by how unequal the sequences are, the
error to expect where tokens' gradients are independent noise; of a run also its error by update,
which begins below that level and then lies about it, above as well as below.
"""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Scalar, Trace
from .. import palette, words
from .timeline import framed

NAIVE, RIGHT = palette.VERSIONS[5], palette.VERSIONS[0]
NOISE = "expected of noise"
MOST_LABELS, MOST_LISTED = 8, 5


def accumulation(trace: Trace) -> go.Figure:
    """Pictures side by side, of a prediction two, of a run three."""
    facts = words.facts_of(
        trace, "counts", "knows no micro-batches of unequal length", "accumulate"
    )
    errors = [e.value for e in trace.where(Scalar, name="error, mean of means")]
    figure = make_subplots(
        cols=3 if errors else 2,
        column_widths=[0.44, 0.24, 0.32] if errors else [0.55, 0.45],
        horizontal_spacing=0.09,
    )
    draw_counts(figure, facts["tokens"], facts["counts"])
    draw_expected(figure, facts["expected"], facts["spread"])
    if errors:
        draw_errors(figure, errors, facts["noise"])
    top = 1.08 * max(0.5, *(y for _, y in facts["expected"]), *errors)
    for column in range(
        2, 3 + bool(errors)
    ):  # one scale, so that the level on the one side is that on the other
        figure.update_yaxes(
            tickformat=".0%",
            range=[-0.04 * top, top],
            title="gradient off by",
            title_standoff=4,
            row=1,
            col=column,
        )
    figure.update_xaxes(zeroline=False)
    return framed(
        figure,
        f"{trace.clock}: what a token counts, and how far that takes the gradient",
        330,
        margin={"l": 56, "r": 16, "t": 66, "b": 48},
        bargap=0,
    )


def draw_counts(figure: go.Figure, tokens: list[int], counts: dict[str, list[float]]) -> None:
    """Left: one bar a micro-batch, as wide as it has tokens, as high as each of them counts."""
    naive, whole, first = counts["mean of means"], sum(tokens), 0
    top = 1.22 * max(1, *naive)
    for number, (count, weight) in enumerate(zip(tokens, naive)):
        figure.add_bar(
            x=[first + count / 2],
            y=[weight],
            width=count,
            marker={"color": NAIVE, "opacity": 0.75, "line": {"width": 1, "color": "white"}},
            name="mean of means",
            legendgroup="naive",
            showlegend=number == 0,
            hoverinfo="text",
            hovertext=f"micro-batch {number}: {count:,} tokens, each counts {weight:.3g} times",
            row=1,
            col=1,
        )
        if len(tokens) <= MOST_LABELS or number in (0, len(tokens) - 1):
            figure.add_annotation(
                x=max(first + count / 2, 0.03 * whole),
                y=weight,
                yanchor="bottom",
                showarrow=False,
                font_size=12,
                row=1,
                col=1,
                text=f"<b>{weight:.2f}</b>",
            )
        first += count
    figure.add_scatter(
        x=[0, whole],
        y=[1, 1],
        mode="lines",
        line={"color": RIGHT, "width": 2.5, "dash": "dash"},
        name="token-weighted: 1",
        hoverinfo="text",
        hovertext="in the large batch each token counts once",
        row=1,
        col=1,
    )
    figure.update_xaxes(
        range=[0, whole], title=f"the window's {whole:,} tokens: {listed(tokens)}", row=1, col=1
    )
    figure.update_yaxes(range=[0, top], title="what a token counts", row=1, col=1)


def draw_expected(figure: go.Figure, expected: list[list[float]], spread: float) -> None:
    """The mean of means' error against the spread, if tokens are noise; a line at the spread that
    is chosen."""
    figure.add_scatter(
        x=[x for x, _ in expected],
        y=[y for _, y in expected],
        mode="lines",
        line={"color": NAIVE, "width": 2},
        name=NOISE,
        legendgroup="noise",
        hoverinfo="text",
        hovertext=[f"spread {x:g}: about {y:.0%} off" for x, y in expected],
        row=1,
        col=2,
    )
    figure.add_vline(
        x=spread, line={"dash": "dot", "width": 1, "color": palette.TRANSFER}, row=1, col=2
    )
    figure.update_xaxes(
        range=[0.5, max(x for x, _ in expected) + 0.5],
        tickvals=[1, 4, 8, 12, 16],
        title="longest sequence / shortest",
        row=1,
        col=2,
    )


def draw_errors(figure: go.Figure, errors: list[float], noise: list[float]) -> None:
    """A run's errors, update by update, and about how large each would be if tokens were noise; of
    a short last window it is another."""
    edges = [
        (number + side, level, f"update {number}: of noise about {level:.0%}")
        for number, level in enumerate(noise[: len(errors)])
        for side in (-0.5, 0.5)
    ]
    x, y, told = zip(*edges)
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": NAIVE, "width": 2},
        name=NOISE,
        legendgroup="noise",
        showlegend=False,
        hoverinfo="text",
        hovertext=told,
        row=1,
        col=3,
    )
    figure.add_scatter(
        x=list(range(len(errors))),
        y=errors,
        mode="markers",
        marker={"size": 8, "color": NAIVE, "line": {"width": 1, "color": "white"}},
        name="mean of means, in this run",
        hoverinfo="text",
        hovertext=[f"update {n}: off by {error:.1%}" for n, error in enumerate(errors)],
        row=1,
        col=3,
    )
    figure.add_hline(
        y=0, line={"color": RIGHT, "width": 2.5, "dash": "dash"}, row=1, col=3
    )  # token-weighted
    figure.update_xaxes(
        range=[-0.7, len(errors) - 0.3],
        title="update",
        nticks=6,
        dtick=1 if len(errors) < 6 else None,
        row=1,
        col=3,
    )


def listed(tokens: list[int]) -> str:
    return ", ".join(
        f"{count:,}" for count in (tokens if len(tokens) <= MOST_LISTED else tokens[:2])
    ) + (f" .. {tokens[-1]:,}" if len(tokens) > MOST_LISTED else "")
