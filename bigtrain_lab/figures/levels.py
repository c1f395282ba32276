"""Levels of precision side by side: how each one learns, and the table of the field: speed, F1, bytes to keep, peak of memory.

Above, the loss of each training, a mean over a twentieth of it: the first level wide and pale, so that what lies upon it is seen;
a cross is where it stopped being a number. Below, one column a
quantity, one bar a level, in the colour of its curve; a level without a bar has no such number.
"""

from collections.abc import Callable, Iterable
from math import isfinite

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..core import Impossible, Trace
from ..rates import Level, field
from ..words import size
from . import palette
from .timeline import look

COLOURS = (*palette.VERSIONS[:6], "#7B61D6")  # no yellow: a thin line of it is lost on white
DASHES = "solid", "solid", "9px,9px", "9px,4px,2px,4px", "6px,3px", "2px,5px", "4px,10px"
ALIKE = 0.05  # of the highest loss: curves that end nearer are named together
ROW, CURVES, FRAME = 34, 230, 176  # heights in pixels: a level's bar, the curves, titles and axes


def levels(traces: Iterable[Trace]) -> go.Figure:
    """Of traces of the experiment `precision`, modelled, measured or both of each level."""
    rows = field([traces] if isinstance(traces, Trace) else traces)
    if not rows:
        raise Impossible("There is nothing to compare: give at least one trace of the experiment precision.")
    columns, learned = columns_of(rows), any(row.losses for row in rows)
    heights = [CURVES] * learned + [ROW * len(rows) + 20]
    above = [[{"colspan": len(columns)}, *[None] * (len(columns) - 1)]] * learned
    figure = make_subplots(rows=len(heights), cols=len(columns), specs=[*above, [{}] * len(columns)], row_heights=heights,
                           vertical_spacing=0.22 * learned, horizontal_spacing=0.022, shared_yaxes=True,
                           subplot_titles=[*[""] * learned, *(title for title, _, _ in columns)])
    if learned:
        draw_curves(figure, rows)
    figure.update_annotations(font_size=11, yshift=2)
    for column, (_, value, words) in enumerate(columns, 1):
        draw_bars(figure, rows, value, words, len(heights), column)
    title = "how they learn, and what they come to" if learned else "what they come to"
    figure.update_layout(**look(f"levels of precision: {title}", sum(heights) + (FRAME if learned else FRAME - 40)), showlegend=learned)
    figure.update_layout(margin=dict(l=118, r=14, t=74 if learned else 110, b=16),
                         legend=dict(orientation="h", x=0, xanchor="left", y=1.01, yanchor="bottom", font_size=12))
    return figure


def columns_of(rows: list[Level]) -> list[tuple[str, Callable[[Level], float | None], Callable[[float], str]]]:
    """(title, a level's value, its words) of what any of the levels has."""
    def rate(value):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    rates = [(f"{what}<br>{clock}", lambda row, of=of, clock=clock: of(row).get(clock), rate)
             for what, of in (("training<br>steps/s", lambda row: row.training), ("inference<br>batches/s", lambda row: row.reading)) for clock in ("predicted", "modelled", "measured")]
    scores = [(f"{name} F1,<br>names<br>never met", lambda row, name=name: getattr(row, name), "{:.3f}".format) for name in ("micro", "macro")]
    states = [("checkpoint,<br>to go on", lambda row: row.checkpoint_bytes, size), ("peak of<br>memory", lambda row: row.peak_bytes, size)]
    return [each for each in (*rates, *scores, *states) if any(each[1](row) is not None for row in rows)]


def draw_curves(figure: go.Figure, rows: list[Level]) -> None:
    """The first level wide and pale, the others upon it, ever thinner and in other dashes; at the right each bundle's names, and a cross where a curve ends in nan."""
    curves = {row.name: means(row) for row in rows}
    colours = {row.name: colour(number) for number, row in enumerate(rows)}
    for number, row in enumerate(rows):
        y, first = curves[row.name], number == 0 and len(rows) > 1
        line = dict(width=9 if first else max(2, 6 - number), dash=DASHES[number % len(DASHES)])
        figure.add_scatter(x=list(range(1, len(y) + 1)), y=y, mode="lines", name=row.name, legendgroup=row.name, opacity=0.5 if first else 1,
                           line=dict(color=colours[row.name], **line), hovertemplate=f"{row.name}, step %{{x}}: loss %{{y:.3f}}<extra></extra>", row=1, col=1)
    steps = max(len(row.losses) for row in rows)
    scale = max((loss for y in curves.values() for loss in y), default=1)
    for names in bundles(curves, ALIKE * scale):
        end = len(curves[names[0]])
        broken = end < len(next(row for row in rows if row.name == names[0]).losses)
        texts = [f'<span style="color:{colours[name]}">{"✕ " * broken}<b>{name}</b></span>' for name in names]
        figure.add_annotation(x=max(end, 1), y=curves[names[0]][-1] if end else 0, showarrow=False, font_size=11, row=1, col=1,
                              text=(",  ".join(texts) if broken else "<br>".join(texts)) + ": no number from " * broken + f"step {end + 1} on" * broken,
                              xanchor="left" if not broken or end < steps / 2 else "right", yanchor="bottom" if broken or curves[names[0]][-1] < 0.3 * scale else "middle", xshift=6,
                              align="left")
    apart = float(f"{max(1, steps / 8):.0e}")
    figure.update_xaxes(title=dict(text="training step", standoff=2), zeroline=False, range=[0, 1.16 * steps], row=1, col=1,
                        tickvals=[apart * n for n in range(int(steps / apart) + 1)])
    figure.update_yaxes(title="loss", rangemode="tozero", row=1, col=1)


def means(row: Level) -> list[float]:
    """The losses up to the first that is no number, each the mean of a twentieth of the training that ends there."""
    width = max(1, len(row.losses) // 20)
    good = next((i for i, loss in enumerate(row.losses) if not isfinite(loss)), len(row.losses))
    return [sum(row.losses[max(0, i + 1 - width):i + 1]) / min(i + 1, width) for i in range(good)]


def bundles(curves: dict[str, list[float]], near: float) -> list[list[str]]:
    """Names whose curves end together: at the same step, no further from the first of them than `near`."""
    found: list[list[str]] = []
    for name, curve in curves.items():
        for names in found:
            if len(curves[names[0]]) == len(curve) and abs((curves[names[0]] or [0])[-1] - (curve or [0])[-1]) <= near:
                names.append(name)
                break
        else:
            found.append([name])
    return found


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def draw_bars(figure: go.Figure, rows: list[Level], value, words, line: int, column: int) -> None:
    """One bar a level, its number above it."""
    values = [value(row) for row in rows]
    most = max((v for v in values if v is not None), default=0) or 1
    figure.add_bar(y=[row.name for row in rows], x=[v or 0 for v in values], orientation="h", showlegend=False, width=0.2, offset=0.2,
                   marker=dict(color=[colour(i) for i in range(len(rows))], line_width=0), hoverinfo="skip", row=line, col=column)
    for row, v in zip(rows, values):
        figure.add_annotation(x=0, y=row.name, text="" if v is None else words(v), showarrow=False, xanchor="left", xshift=-4, font_size=12, row=line, col=column)
    figure.update_xaxes(range=[0, 1.04 * most], showticklabels=False, showgrid=False, zeroline=False, row=line, col=column)
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=[row.name for row in rows], ticksuffix="  ", showgrid=False,
                        row=line, col=column)
