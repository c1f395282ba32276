"""What each rank holds over time, stacked by kind: bytes at action boundaries, and what was
read inside actions on top of those. A peak inside an action that the stack does not reach stands on
a dotted stem."""

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...core import MEMORY_KINDS, Peak, Trace, by_kind, peak, readings, size
from .. import palette, words
from .timeline import framed


def memory(trace: Trace, rank: int | None = None, title: str | None = None) -> go.Figure:
    """One small picture a rank (or only `rank`), all on one time axis and one scale of bytes."""
    ranks = list(range(trace.ranks)) if rank is None else [rank]
    start = min((e.start for e in trace.events), default=0)
    end = max((e.end for e in trace.events), default=0)
    peaks = {each: found for each in ranks if (found := peak(trace, each))}
    highest = max((found.bytes for found in peaks.values()), default=0)
    unit, factor = words.axis_unit(trace)
    when = "" if len(ranks) == 1 else "%{x}<br>"  # else it heads the label of all kinds
    figure = make_subplots(
        rows=len(ranks),
        cols=1,
        shared_xaxes=True,
        shared_yaxes="all",
        vertical_spacing=0.12 / len(ranks),
    )

    def at(ticks):
        return trace.units(ticks - start) * factor

    for row, each in enumerate(ranks, 1):
        stacked = readings(trace, each)
        x = np.array([at(read.start) for read in stacked] + [at(end)])
        held = {kind for read in stacked for kind in read.held}
        for kind in filter(held.__contains__, MEMORY_KINDS):
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=np.array([read.held.get(kind, 0) for read in (*stacked, stacked[-1])]),
                    name=kind,
                    legendgroup=kind,
                    showlegend=kind not in {line.name for line in figure.data},
                    stackgroup="held",
                    mode="lines",
                    line={"shape": "hv", "width": 0.5, "color": palette.MEMORY[kind]},
                    fillcolor=palette.MEMORY[kind],
                    hovertemplate=f"{when}{kind}: %{{y:.4~s}}B (%{{y:,}} bytes)<extra></extra>",
                ),
                row=row,
                col=1,
            )
        if each in peaks:
            draw_stem(figure, peaks[each], at, stacked, row)
        figure.update_yaxes(
            title={"text": f"rank {each}", "standoff": 6},
            row=row,
            col=1,
            **byte_ticks(highest, 4 if len(ranks) == 1 else 1),
        )
    if end > start:
        figure.update_xaxes(range=[0, at(end)])
    figure.update_xaxes(title=f"time ({unit})", row=len(ranks), col=1)
    return framed(
        figure,
        title or f"{trace.clock}: {heading(trace, ranks, peaks)}",
        120 + {1: 180, 2: 110}.get(len(ranks), 74) * len(ranks),
        margin_l=92,
        hovermode="x unified" if len(ranks) == 1 else "closest",
        legend={"traceorder": "normal"},
    )


def heading(trace: Trace, ranks: list[int], peaks: dict[int, Peak]) -> str:
    """The peaks; of one rank also how high its ends of actions reach, where its peak is inside one
    and above them."""
    tops = [size(peaks[each].bytes) if each in peaks else "0 B" for each in ranks]
    if len(ranks) > 1:
        return "peak bytes a rank " + ", ".join(tops[:8]) + (", ..." if len(ranks) > 8 else "")
    ends = max(
        (read.bytes for each in ranks for read in readings(trace, each) if not read.inside),
        default=0,
    )
    return (
        f"peak inside an action {tops[0]}, at the ends of actions {size(ends)}"
        if any(found.inside and found.bytes > ends for found in peaks.values())
        else f"peak bytes {', '.join(tops)}"
    )


def draw_stem(figure: go.Figure, top: Peak, at, stacked: list[Peak], row: int) -> None:
    """From what the stack shows just before the peak up to it, where that is higher."""
    shown = next((read.bytes for read in reversed(stacked) if read.start < top.start), 0)
    if top.bytes <= max([shown, *(read.bytes for read in stacked if read.start == top.start)]):
        return
    figure.add_trace(
        go.Scatter(
            x=[at(top.start)] * 2,
            y=[shown, top.bytes],
            name="peak inside an action",
            legendgroup="peak",
            mode="lines+markers",
            showlegend="peak" not in {line.legendgroup for line in figure.data},
            line={"color": palette.INK, "width": 2, "dash": "dot"},
            marker={"symbol": "circle", "size": [0, 9], "color": palette.INK, "line_width": 0},
            cliponaxis=False,
            hovertext=["", f"peak {size(top.bytes)} {top.place}: {by_kind(top.held)}"],
            hoverinfo="text+x",
        ),
        row=row,
        col=1,
    )


def byte_ticks(peak: int, most: int = 1) -> dict:
    """A byte axis up to the peak, with ticks there and at up to so many round places below it, in
    human units."""
    if not peak:
        return {}
    power = 10 ** (len(str(int(peak))) - 1)
    steps = (part * power // 100 for part in (2, 5, 10, 20, 25, 50, 100, 200, 500))
    step = (
        next((step for step in steps if step and peak <= (most + 0.5) * step), 5 * power)
        if peak > 100
        else peak
    )
    at = [0, *(n * step for n in range(1, most + 1) if n * step < 0.88 * peak), peak]
    return {
        "range": [0, 1.04 * peak],
        "tickvals": at,
        "ticktext": [size(each) + "  " if each else "0  " for each in at],
    }
