"""How far each layer goes in an update: above its trust ratio, below the length of its step beside
that of its weights.

    |step| / |weights|  =  rate x trust ratio x |u| / |weights|

By LAMB all layers of the lower picture lie on one line, the rate: the ratios above are what brings
them there. By Adam the ratio is 1, and each layer goes as far as its gradient happens to take it.
At the right the same of one update, which plays.
"""

from math import ceil, floor, inf, log10

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import Trace, refuse
from ...order import STEP, TRUST, of_layers
from .. import palette, words
from .timeline import framed

ROWS = {1: (TRUST, "trust ratio"), 2: (STEP, "|step| / |weights|")}
FRAME_MS = 120
MOST = 64  # updates that are played


def trust(trace: Trace) -> go.Figure:
    """Of a run all layers; before it nothing is known."""
    facts = words.facts_of(trace, "looked", "knows no trust ratios", "large-batch")
    looked, rates = facts["looked"], facts["rates"]
    layers = {row: of_layers(trace, what) for row, (what, _) in ROWS.items()}
    seen = min((len(values) for values in layers[2].values()), default=0)
    refuse((not seen, "A run tells what each layer makes of the learning rate: press Run."))
    looked, rates = looked[:seen], rates[:seen]
    figure = make_subplots(
        rows=2,
        cols=2,
        column_widths=[0.64, 0.36],
        vertical_spacing=0.13,
        horizontal_spacing=0.03,
    )
    for row in ROWS:
        draw_lines(figure, layers[row], looked, row)
    figure.add_scatter(
        x=looked,
        y=rates,
        mode="lines",
        line={"color": palette.INK, "width": 2, "dash": "dot"},
        name="learning rate",
        hovertemplate="update %{x}: learning rate %{y:.3g}<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_xaxes(
        title={"text": "update", "standoff": 4},
        range=[0, 1.01 * looked[-1]],
        zeroline=False,
        row=2,
        col=1,
    )
    return framed(
        figure,
        f"{trace.clock}: trust ratios and steps of all layers",
        470,
        **animate(figure, layers, looked),
    )


def draw_lines(
    figure: go.Figure, layers: dict[str, list[float]], looked: list[int], row: int
) -> None:
    for number, (name, values) in enumerate(layers.items()):
        figure.add_scatter(
            x=looked,
            y=values,
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=False,
            row=row,
            col=1,
            line={"color": colour(number, len(layers)), "width": 1.6},
            hovertemplate=f"{name}, update %{{x}}: {ROWS[row][1]} %{{y:.3g}}<extra></extra>",
        )
    figure.update_yaxes(
        type="log",
        title={"text": ROWS[row][1], "standoff": 4},
        exponentformat="power",
        dtick=1,
        row=row,
        col=1,
    )


def colour(number: int, count: int) -> str:
    """From the first layer, dark blue, to the last, light: an order that reads without hues."""
    return palette.shaded("#08306B", 0.75 * number / max(1, count - 1))


def animate(
    figure: go.Figure, layers: dict[int, dict[str, list[float]]], looked: list[int]
) -> dict:
    """The right column: a bar a layer, at one update, and a line through the left one where that
    is. Returns the layout that plays them."""
    every = -(-len(looked) // MOST)
    played = range(len(looked) - 1, -1, -every)[::-1]
    ends = {row: bounds(values for values in own.values()) for row, own in layers.items()}
    first = len(figure.data)
    figure.add_traces(at(layers, looked, ends, played[-1]))
    numbers = list(range(first, len(figure.data)))
    figure.frames = [
        go.Frame(name=str(looked[n]), data=at(layers, looked, ends, n), traces=numbers)
        for n in played
    ]
    for row, (low, high) in ends.items():
        figure.update_xaxes(
            type="log", range=[low, high], exponentformat="power", dtick=1, row=row, col=2
        )
        figure.update_yaxes(range=[low, high], row=row, col=1)
        figure.update_xaxes(range=[0, 1.01 * looked[-1]], zeroline=False, row=row, col=1)
        figure.update_yaxes(autorange="reversed", side="right", row=row, col=2)
    return {
        "margin": {"l": 56, "r": 16, "t": 48, "b": 96},
        "showlegend": True,
        "bargap": 0.15,
        "uniformtext": {"mode": False},
        "updatemenus": [
            {
                "type": "buttons",
                "direction": "left",
                "x": 0,
                "y": 0,
                "xanchor": "left",
                "yanchor": "top",
                "pad": {"t": 50, "r": 8},
                "showactive": False,
                "buttons": [
                    {"label": "▶", "method": "animate", "args": [None, told(FRAME_MS)]},
                    {"label": "❚❚", "method": "animate", "args": [[None], told(0)]},
                ],
            }
        ],
        "sliders": [
            {
                "active": len(played) - 1,
                "x": 0.12,
                "len": 0.88,
                "y": 0,
                "pad": {"t": 46, "b": 0},
                "ticklen": 3,
                "font_size": 10,
                "currentvalue": {"prefix": "update ", "font_size": 13, "xanchor": "left"},
                "steps": [
                    {
                        "method": "animate",
                        "label": f"{looked[n]:,}",
                        "args": [[str(looked[n])], told(0)],
                    }
                    for n in played
                ],
            }
        ],
    }


def at(
    layers: dict[int, dict[str, list[float]]], looked: list[int], ends: dict, number: int
) -> list:
    """What moves: in each row the bars, and the line at this update."""
    traces = []
    for row, own in layers.items():
        low, high = (10.0**end for end in ends[row])
        values = [each[number] for each in own.values()]
        axes = {"xaxis": f"x{2 * row}", "yaxis": f"y{2 * row}"}
        traces.append(
            go.Bar(
                y=[*own],
                x=[max(value, low) - low for value in values],
                base=low,
                orientation="h",
                showlegend=False,
                marker={"color": [colour(n, len(own)) for n in range(len(own))], "line_width": 0},
                text=[f"{value:.3g}" for value in values],
                textposition="inside",
                insidetextanchor="start",
                constraintext="none",
                insidetextfont={
                    "size": 10,
                    "color": [palette.ink(colour(n, len(own))) for n in range(len(own))],
                },
                hovertemplate=f"%{{y}}: {ROWS[row][1]} %{{text}}<extra></extra>",
                **axes,
            )
        )
        axes = {
            "xaxis": f"x{2 * row - 1 if row > 1 else ''}",
            "yaxis": f"y{2 * row - 1 if row > 1 else ''}",
        }
        traces.append(
            go.Scatter(
                x=[looked[number]] * 2,
                y=[low, high],
                mode="lines",
                showlegend=False,
                hoverinfo="skip",
                line={"color": palette.VERSIONS[5], "width": 1.5},
                **axes,
            )
        )
    return traces


def bounds(rows) -> tuple[float, float]:
    """Whole powers of ten around all values that are above 0."""
    found = [value for values in rows for value in values if 0 < value < inf] or [1.0]
    low, high = floor(log10(min(found))), ceil(log10(max(found)))
    return low - (low == high), high + (low == high)


def told(milliseconds: int) -> dict:
    return {
        "mode": "immediate",
        "fromcurrent": True,
        "frame": {"duration": milliseconds, "redraw": True},
        "transition": {"duration": 0},
    }
