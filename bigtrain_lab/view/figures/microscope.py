"""What each rank holds over a step, by kind, and what it has sent by then: trainings side by side.

A column is a training, a row a rank, all on one scale of bytes; the last row is what a rank sent.
Above each column stand its numbers: the highest peak of its ranks, how much of it each kind is, and
the bytes that a rank sends in the step.
"""

from collections.abc import Mapping
from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import MEMORY_KINDS, UNITS, Peak, Trace, duration, over_step, prefix, refuse, size
from ...order import sent_so_far
from .. import palette, words
from .timeline import framed

RANKS = 4  # rows: more would be too low to be read
READINGS = 120  # of a rank and step: a column is 190 pixels wide
LEAST = 0.03  # of a peak: what a kind must be to be told
SENT = palette.CLOCKS["measured"]
ROW, ABOVE, BELOW = 55, 118, 24  # pixels


class Column(NamedTuple):
    """The last step of a training, when the optimizer has its state. Times in ticks; `sent`: by the
    rank that sends most."""

    trace: Trace
    held: list[list[Peak]]
    sent: list[tuple[int, int]]
    start: int
    end: int
    unit: str
    per_tick: float

    @classmethod
    def of(cls, trace: Trace) -> "Column":
        step, ranks = trace.steps - 1, range(trace.ranks)
        sent = (sent_so_far(trace, rank, step) for rank in ranks)
        unit, factor = words.axis_unit(trace)
        return cls(
            trace,
            [over_step(trace, rank, step, READINGS) for rank in ranks],
            max(sent, key=lambda told: told[-1][1]),
            *(trace._begin(), *trace.step_ends)[-2:],
            unit,
            trace.units(1) * factor,
        )

    @property
    def peak(self) -> Peak | None:
        """The highest of all ranks; None where nothing was read."""
        return max(
            (read for told in self.held for read in told), key=lambda read: read.bytes, default=None
        )

    def at(self, tick: int) -> float:
        return (tick - self.start) * self.per_tick

    def length(self, others: list["Column"]) -> float:
        """All in one unit have one scale, so that a longer step is seen; what a machine measured
        has its own."""
        alike = [
            each
            for each in others
            if each.unit == self.unit
            and (each.trace.clock == "measured") == (self.trace.clock == "measured")
        ]
        return max(each.at(each.end) for each in alike) or 1

    def heading(self, name: str, unit: str) -> str:
        """Its name, and its numbers: the peak, what a rank sends, and each kind at the peak."""
        clock = self.trace.clock
        lines = [f"<b>{name}</b> <span style='color:{palette.CLOCKS[clock]}'>{clock}</span>"]
        if peak := self.peak:
            told = [kind for kind in MEMORY_KINDS if peak.held.get(kind, 0) >= LEAST * peak.bytes]
            lines += [
                f"peak <b>{short(peak.bytes)}</b>, sends <b>{short(self.sent[-1][1])}</b>",
                " ".join(
                    f"<span style='color:{palette.MEMORY[kind]}'>■</span>"
                    f"{amount:{'.3g' if amount >= 10 else '.2g'}}"
                    for kind in told
                    for amount in [peak.held[kind] / 1000 ** UNITS.index(unit)]
                ),
            ]
        return "<br>".join(lines)


def microscope(traces: Mapping[str, Trace] | Trace) -> go.Figure:
    """Of several traces by name, or of one."""
    traces = {"": traces} if isinstance(traces, Trace) else traces
    columns = {name: Column.of(trace) for name, trace in traces.items()}
    top = max((column.peak.bytes for column in columns.values() if column.peak), default=0)
    refuse(
        (
            not top,
            "These traces tell nothing of memory: take those of an experiment that trains a model.",
        )
    )
    ranks = max(trace.ranks for trace in traces.values())
    rows, unit = min(ranks, RANKS), UNITS[prefix(top)]
    inner = ROW * (rows + 1)
    figure = make_subplots(
        rows=rows + 1,
        cols=len(columns),
        shared_xaxes="columns",
        vertical_spacing=10 / inner,
        horizontal_spacing=0.016,
    )
    for place, (name, column) in enumerate(columns.items(), 1):
        draw_held(figure, column, rows, place)
        draw_sent(figure, column, rows + 1, place)
        figure.add_annotation(
            text=column.heading(name, unit),
            x=0,
            xref="x domain",
            y=1,
            yref="y domain",
            xanchor="left",
            yanchor="bottom",
            align="left",
            showarrow=False,
            font_size=11,
            row=1,
            col=place,
        )
        figure.update_xaxes(
            range=[0, column.length([*columns.values()])],
            hoverformat=".4~g",
            ticksuffix=f" {column.unit}",
            showticklabels=False,
            showgrid=False,
            zeroline=False,
            col=place,
        )
    busiest = max(column.sent[-1][1] for column in columns.values())
    for row in range(1, rows + 2):
        high, title = (top, f"rank {row - 1}") if row <= rows else (busiest, "sent")
        figure.update_yaxes(
            range=[0, 1.04 * (high or 1)],
            tickvals=[0, high],
            showticklabels=False,
            ticktext=["0 ", size(high) + " "],
            row=row,
        )
        figure.update_yaxes(
            title={"text": title, "standoff": 2}, showticklabels=True, row=row, col=1
        )
    drawn = "" if rows == ranks else f"; ranks 0 to {rows - 1} of {ranks} are drawn"
    height = inner + ABOVE + BELOW
    return framed(
        figure,
        f"what each rank holds over a step, by kind in {unit} at the peak{drawn}",
        height,
        margin={"l": 96, "r": 8, "t": ABOVE, "b": BELOW},
        hovermode="x unified",
        title={"y": 1, "yref": "container", "yanchor": "top", "pad_t": 8},
        legend={
            "traceorder": "normal",
            "y": 1 - 30 / height,
            "yref": "container",
            "yanchor": "top",
            "x": 0,
            "xanchor": "left",
            "font_size": 11,
        },
    )


def draw_held(figure: go.Figure, column: Column, rows: int, place: int) -> None:
    """The stack of each rank, one under the other."""
    for row, told in enumerate(column.held[:rows], 1):
        kinds = {kind for read in told for kind in read.held}
        for kind in filter(kinds.__contains__, MEMORY_KINDS):
            figure.add_scatter(
                x=[column.at(tick) for tick in (*(read.start for read in told), column.end)],
                y=[read.held.get(kind, 0) for read in (*told, told[-1])],
                name=kind,
                legendgroup=kind,
                showlegend=kind not in {line.name for line in figure.data},
                stackgroup="held",
                mode="lines",
                fillcolor=palette.MEMORY[kind],
                line={"shape": "hv", "width": 0.5, "color": palette.MEMORY[kind]},
                hovertemplate=f"{kind}: %{{y:.4~s}}B<extra></extra>",
                row=row,
                col=place,
            )


def draw_sent(figure: go.Figure, column: Column, row: int, place: int) -> None:
    """What has been sent by then, and how long the step is."""
    figure.add_scatter(
        x=[column.at(tick) for tick, _ in column.sent],
        name="sent by a rank",
        y=[sent for _, sent in column.sent],
        mode="lines",
        fill="tozeroy",
        line={"width": 1.5, "color": SENT},
        legendgroup="sent",
        showlegend=place == 1,
        hovertemplate="sent: %{y:.4~s}B<extra></extra>",
        row=row,
        col=place,
    )
    figure.add_annotation(
        x=0,
        y=0,
        text=f"{duration(column.trace.units(column.end - column.start), column.trace.unit)} a step",
        showarrow=False,
        xanchor="left",
        yanchor="top",
        font_size=11,
        yshift=-2,
        row=row,
        col=place,
    )


def short(count: int) -> str:
    """Bytes in three digits."""
    return f"{count / 1000 ** prefix(count):.3g} {UNITS[prefix(count)]}"
