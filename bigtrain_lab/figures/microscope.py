"""What each rank holds over a step, by kind, and what it has sent by then: several trainings side by side.

A column is a training, a row a rank, all on one scale of bytes; the last row is what a rank has sent. Above each column stand its
numbers: the highest peak of its ranks, how much of it each kind is, and the bytes that a rank sends in the step.
"""

from collections.abc import Mapping
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..core import MEMORY_KINDS, Impossible, Trace
from ..core.peak import Peak, over_step
from ..rates import sent_so_far
from ..words import UNITS, duration, prefix, size
from . import palette, words
from .timeline import look

RANKS = 4  # rows: more would be too low to be read
READINGS = 120  # of a rank and step: a column is 190 pixels wide
LEAST = 0.005  # of a peak: what a kind must be to be told
SENT = palette.CLOCKS["measured"]
ROW, ABOVE, BELOW = 55, 118, 24  # pixels


def microscope(traces: Mapping[str, Trace] | Trace) -> go.Figure:
    """The last step of each of these, by name, when the optimizer has its state."""
    traces = {"": traces} if isinstance(traces, Trace) else dict(traces)
    held = [[over_step(trace, rank, trace.steps - 1, READINGS) for rank in range(trace.ranks)] for trace in traces.values()]
    sent = [max((sent_so_far(trace, rank, trace.steps - 1) for rank in range(trace.ranks)), key=lambda told: told[-1][1]) for trace in traces.values()]
    most, peaks = max((trace.ranks for trace in traces.values()), default=0), [highest(ranks) for ranks in held]
    if not any(peaks):
        raise Impossible("These traces tell nothing of memory: take those of an experiment that trains a model.")
    rows, top, busiest = min(most, RANKS), max(peak.bytes for peak in peaks if peak), max(told[-1][1] for told in sent)
    inner, unit = ROW * (rows + 1), UNITS[prefix(top)]
    figure = make_subplots(rows=rows + 1, cols=len(traces), shared_xaxes="columns", vertical_spacing=10 / inner, horizontal_spacing=0.016)
    axes = [*map(Axis.of, traces.values())]
    for column, (name, trace, axis) in enumerate(zip(traces, traces.values(), axes), 1):
        draw_held(figure, axis, held[column - 1][:rows], column)
        draw_sent(figure, axis, sent[column - 1], rows + 1, column)
        clock = f"<span style='color:{palette.CLOCKS[trace.clock]}'>{trace.clock}</span>"
        text = [f"<b>{name}</b> {clock}", *told(peaks[column - 1], sent[column - 1][-1][1], unit)]
        figure.add_annotation(text="<br>".join(text), x=0, xref="x domain", y=1, yref="y domain", showarrow=False, xanchor="left",
                              yanchor="bottom", align="left", font_size=11, row=1, col=column)
        figure.add_annotation(x=0, y=0, text=f"{duration(trace.units(axis.end - axis.start), trace.unit)} a step", showarrow=False, xanchor="left",
                              yanchor="top", font_size=11, yshift=-2, row=rows + 1, col=column)
        figure.update_xaxes(range=[0, axis.length(axes)], ticksuffix=f" {axis.unit}", hoverformat=".4~g", showticklabels=False, showgrid=False,
                            zeroline=False, col=column)
    for row in range(1, rows + 2):
        high, title = (top, f"rank {row - 1}") if row <= rows else (busiest, "sent")
        figure.update_yaxes(range=[0, 1.04 * (high or 1)], tickvals=[0, high], ticktext=["0 ", size(high) + " "], showticklabels=False, row=row)
        figure.update_yaxes(title=dict(text=title, standoff=2), showticklabels=True, row=row, col=1)
    drawn = "" if rows == most else f"; ranks 0 to {rows - 1} of {most} are drawn"
    figure.update_layout(**look(f"what each rank holds over a step, by kind in {unit} at the peak{drawn}", inner + ABOVE + BELOW))
    figure.update_layout(margin=dict(l=96, r=8, t=ABOVE, b=BELOW), hovermode="x unified", title=dict(y=1, yref="container", yanchor="top", pad_t=8),
                         legend=dict(traceorder="normal", y=1, yref="container", yanchor="top", x=0, xanchor="left", font_size=11))
    figure.update_layout(legend_y=1 - 30 / figure.layout.height)
    return figure


def highest(ranks: list[list[Peak]]) -> Peak | None:
    """Of all ranks; None where nothing was read."""
    return max((read for told in ranks for read in told), key=lambda read: read.bytes, default=None)


def told(peak: Peak | None, sent: int, unit: str) -> list[str]:
    """The numbers of a column: its peak, what a rank sends, and each kind at the peak."""
    if peak is None:
        return []
    parts = [f"<span style='color:{palette.MEMORY[kind]}'>■</span>{peak.held[kind] / 1000**UNITS.index(unit):.3g}" for kind in MEMORY_KINDS
             if peak.held.get(kind, 0) >= LEAST * peak.bytes]
    return [f"peak <b>{short(peak.bytes)}</b>, sends <b>{short(sent)}</b>", " ".join(parts)]


def short(count: int) -> str:
    """Bytes in three digits."""
    return f"{count / 1000**prefix(count):.3g} {UNITS[prefix(count)]}"


class Axis(NamedTuple):
    """The time of a column, from the beginning of its last step."""

    clock: str
    unit: str
    per_tick: float
    start: int
    end: int

    @classmethod
    def of(cls, trace: Trace) -> "Axis":
        unit, factor = words.axis_unit(trace)
        return cls(trace.clock, unit, trace.units(1) * factor, *(trace._begin(), *trace.step_ends)[-2:])

    def at(self, tick: int) -> float:
        return (tick - self.start) * self.per_tick

    def length(self, others: list["Axis"]) -> float:
        """All in one unit have one scale, so that a longer step is seen; what a machine measured has its own."""
        alike = [each for each in others if each.unit == self.unit and (each.clock == "measured") == (self.clock == "measured")]
        return max(each.at(each.end) for each in alike) or 1


def draw_held(figure: go.Figure, axis: Axis, ranks: list[list[Peak]], column: int) -> None:
    """The stack of each rank, one under the other."""
    for row, told in enumerate(ranks, 1):
        kinds = {kind for read in told for kind in read.held}
        for kind in filter(kinds.__contains__, MEMORY_KINDS):
            figure.add_scatter(
                x=[axis.at(tick) for tick in (*(read.start for read in told), axis.end)], y=[read.held.get(kind, 0) for read in (*told, told[-1])], name=kind,
                legendgroup=kind, showlegend=kind not in {line.name for line in figure.data}, stackgroup="held", mode="lines",
                line=dict(shape="hv", width=0.5, color=palette.MEMORY[kind]), fillcolor=palette.MEMORY[kind],
                hovertemplate=f"{kind}: %{{y:.4~s}}B<extra></extra>", row=row, col=column)


def draw_sent(figure: go.Figure, axis: Axis, told: list[tuple[int, int]], row: int, column: int) -> None:
    """What the rank that sends most has sent by then."""
    figure.add_scatter(x=[axis.at(tick) for tick, _ in told], y=[sent for _, sent in told], name="sent by a rank", mode="lines", fill="tozeroy", line=dict(width=1.5, color=SENT), showlegend=column == 1,
                       legendgroup="sent", hovertemplate="sent: %{y:.4~s}B<extra></extra>", row=row, col=column)
