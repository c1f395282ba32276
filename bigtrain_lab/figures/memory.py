"""What each rank holds over time, stacked by kind: bytes at action boundaries, and thin, what was read inside actions."""

from bisect import bisect_right

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..core import MEMORY_KINDS, Memory, Trace
from ..words import size
from . import palette, words
from .timeline import look


def memory(trace: Trace, rank: int | None = None, title: str | None = None) -> go.Figure:
    """One small picture a rank (or only `rank`), all on one time axis and one scale of bytes."""
    ranks = list(range(trace.ranks)) if rank is None else [rank]
    readings = [e for e in trace.events if isinstance(e, Memory)]
    kinds = [kind for kind in MEMORY_KINDS if any(e.kind == kind and not e.inside for e in readings)]
    start = min((e.start for e in trace.events), default=0)
    end = max((e.end for e in trace.events), default=0)
    unit, factor = words.axis_unit(trace)
    figure = make_subplots(rows=len(ranks), cols=1, shared_xaxes=True, shared_yaxes="all", vertical_spacing=0.12 / len(ranks))

    def at(ticks):
        return trace.units(ticks - start) * factor

    for row, each in enumerate(ranks, 1):
        for kind in kinds:
            levels = trace.levels(each, kind)
            levels = [*levels, (end, levels[-1][1])] if levels else [(start, 0), (end, 0)]
            figure.add_trace(go.Scatter(
                x=[at(t) for t, _ in levels], y=[b for _, b in levels], name=kind, legendgroup=kind, showlegend=row == 1,
                stackgroup="held", mode="lines", line=dict(shape="hv", width=0.5, color=palette.MEMORY[kind]),
                fillcolor=palette.MEMORY[kind], hovertext=[f"{kind}: {size(b)} ({b:,} bytes)" for _, b in levels],
                hoverinfo="text+x"), row=row, col=1)
        inside = [e for e in readings if e.inside and e.rank == each]
        if inside:
            figure.add_trace(go.Scatter(
                x=[at(e.start) for e in inside], y=[e.bytes + others(trace, e) for e in inside], name="read inside actions", legendgroup="inside",
                showlegend=row == 1, mode="lines", line=dict(width=1, color=palette.INSIDE),
                hovertext=[f"{e.name}: {size(e.bytes)} ({e.bytes:,} bytes)" for e in inside], hoverinfo="text+x"), row=row, col=1)
        figure.update_yaxes(title=dict(text=f"rank {each}", standoff=6), rangemode="tozero", exponentformat="none", row=row, col=1,
                            **byte_ticks(max(trace.peak_bytes(r) for r in ranks)))
    peaks = ", ".join(size(trace.peak_bytes(each)) for each in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    figure.update_layout(**look(title or f"{trace.clock}: peak bytes a rank {peaks}", 120 + 74 * len(ranks)))
    figure.update_layout(margin_l=92, hovermode="x unified" if len(ranks) == 1 else "closest", legend=dict(traceorder="normal"))
    figure.update_xaxes(title=f"time ({unit})", row=len(ranks), col=1)
    return figure


def others(trace: Trace, reading: Memory) -> int:
    """Bytes of the other kinds at a reading's time: it is drawn on top of them."""
    def last(levels):
        at = bisect_right(levels, reading.start, key=lambda level: level[0])
        return levels[at - 1][1] if at else 0

    return last(trace.levels(reading.rank)) - last(trace.levels(reading.rank, reading.kind))


def byte_ticks(peak: int) -> dict:
    """Ticks of a byte axis at zero, half and the peak, in human units."""
    return dict(tickvals=[0, peak / 2, peak], ticktext=["0  ", size(peak / 2) + "  ", size(peak) + "  "]) if peak else {}
