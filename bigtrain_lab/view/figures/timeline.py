"""Who worked on what, and when: one row a lane, one box an action, hatched where the lane was
idle."""

import plotly.graph_objects as go
import plotly.io

from ...core import Trace, duration, refuse, size
from ...core.waited import Waited, waited
from .. import palette, words

LABELLED_SPANS = 500  # beyond this many boxes a label is unreadable and only slows the browser
WHITE = plotly.io.templates["plotly_white"].to_plotly_json()
UNUSED = (
    "geo",
    "polar",
    "scene",
    "ternary",
)  # axes that no figure here has: to check them takes longer than to draw
PAPER = go.layout.Template(  # clear, for no figure knows whether its page is light or dark
    data={kind: WHITE["data"][kind] for kind in ("bar", "heatmap", "scatter")},
    layout={name: value for name, value in WHITE["layout"].items() if name not in UNUSED},
)
PAPER.layout.update(
    paper_bgcolor=palette.CLEAR,
    plot_bgcolor=palette.CLEAR,
    font_color=palette.INK,
    legend_bgcolor=palette.CLEAR,
    **dict.fromkeys(
        ("xaxis", "yaxis"),
        {
            "automargin": True,
            "gridcolor": palette.GRID,
            "zerolinecolor": palette.GRID,
            "linecolor": palette.GRID,
            "ticks": "",
        },
    ),
    hoverlabel={"bgcolor": "#F7F8FA", "bordercolor": "#9AA5B1", "font_color": "#1F2933"},
    sliderdefaults={
        "bgcolor": palette.GRID,
        "activebgcolor": palette.IDLE,
        "bordercolor": palette.TRANSFER,
        "tickcolor": palette.INK,
    },
    modebar={
        "bgcolor": palette.CLEAR,
        "color": palette.INK,
        "activecolor": palette.CLOCKS["modelled"],  # a browser shows it on hover alone
        "remove": ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    },
)


GAPS = {  # plotly's patterns of a rank's time in which it does not compute
    "waits": {"shape": "/", "fgcolor": palette.WAIT, "size": 6, "solidity": 0.3},
    "idle": {"shape": ".", "fgcolor": palette.INK, "size": 5, "solidity": 0.2},
}


def timeline(trace: Trace, colour: str = "phase", title: str | None = None) -> go.Figure:
    """Rows of boxes; `colour` is "phase" (F, B, U) or "version" (the weight version each action
    used)."""
    figure = go.Figure()
    draw_rows(figure, trace, colour)
    lines = {"margin_t": 84, "title_y": 0.98, "title_yanchor": "top"}  # of a long legend, below it
    return framed(
        figure,
        title or heading(trace),
        130 + 38 * len(words.rows_of(trace)),
        xaxis={"title": {"text": f"time ({words.axis_unit(trace)[0]})"}, "range": [0, None]},
        **(lines if len(figure.data) > 7 else {}),
    )


def heading(trace: Trace) -> str:
    if collective := trace.settings.get("collective"):
        return f"{collective}, {trace.clock}: {duration(trace.makespan, trace.unit)}"
    schedule = trace.settings.get("schedule")
    return (
        f"{f'{schedule}, ' if schedule else ''}{trace.clock}:"
        f" {duration(trace.step_time, trace.unit)} a step; {trace.shares()}"
    )


def framed(figure: go.Figure, title: str, height: int, /, **own) -> go.Figure:
    """The figure, with the layout that all share and what is its own; without a width it fills its
    cell."""
    figure.update_layout(
        template=PAPER,
        title={"text": title, "x": 0, "xref": "paper", "font_size": 15},
        height=height,
        barmode="overlay",
        bargap=0.18,
        margin={"l": 80, "r": 16, "t": 48, "b": 44},
        uniformtext={"minsize": 8, "mode": "hide"},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right"},
        hoverlabel={"align": "left"},
    )
    return figure.update_layout(**own)


def draw_rows(figure: go.Figure, trace: Trace, colour: str = "phase", **cell) -> None:
    """Add the boxes to a figure, or to one cell (row=, col=) of it."""
    refuse(
        (
            colour not in ("phase", "version"),
            f'Boxes cannot be coloured by {colour!r}: choose "phase" or "version".',
        )
    )
    _, factor = words.axis_unit(trace)
    spans = trace.boxes()
    start = min((s.start for s in spans), default=0)
    rows = [words.row_name(row) for row in words.rows_of(trace)]

    def at(ticks):
        return trace.units(ticks - start) * factor

    # one legend entry a phase, whatever other rows the figure has
    shown = {drawn.name for drawn in figure.data if drawn.showlegend}
    for name, stretches in gaps(trace).items():
        figure.add_trace(
            go.Bar(
                y=[words.row_name((rank, "compute")) for rank, *_ in stretches],
                x=[at(end) - at(begin) for _, begin, end in stretches],
                base=[at(begin) for _, begin, _ in stretches],
                orientation="h",
                name=name,
                legendgroup=name,
                hoverinfo="skip",
                showlegend=bool(stretches) and name not in shown,
                marker={"color": palette.CLEAR, "line_width": 0, "pattern": GAPS[name]},
            ),
            **cell,
        )
    waits, label = waited(trace), words.labels(trace)
    groups: dict = {}
    for span in spans:
        phase = span.kind[:1] if span.kind[:1] in palette.PHASES else span.kind.replace("_", "-")
        groups.setdefault(phase if colour == "phase" else span.version, []).append(span)
    for key in sorted(groups, key=order_of):
        group = groups[key]
        paint = (
            palette.phase(key)
            if colour == "phase"
            else palette.OTHER_PHASE
            if key is None
            else palette.version(key)
        )
        name = (
            palette.PHASE_NAMES.get(key, key)
            if colour == "phase"
            else "no version"
            if key is None
            else f"version {key}"
        )
        texts = [
            label.get(s.name, s.name)
            + (f"<br>v{s.version}" if colour == "version" and s.version is not None else "")
            for s in group
        ]
        # of more versions the boxes tell their number
        told = colour == "phase" or len(groups) <= len(palette.VERSIONS)
        figure.add_trace(
            go.Bar(
                y=[words.row_name((s.rank, s.lane)) for s in group],
                x=[at(s.end) - at(s.start) for s in group],
                base=[at(s.start) for s in group],
                orientation="h",
                name=name,
                legendgroup=name,
                showlegend=told and name not in shown,
                text=texts if len(spans) <= LABELLED_SPANS else None,
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                insidetextfont_color=palette.ink(paint),
                marker={
                    "color": paint,
                    "line": {
                        "color": paint if len(spans) > LABELLED_SPANS else "white",
                        "width": 1,
                    },
                },
                hovertext=[
                    hover(trace, s, start, waits.get((s.rank, s.lane, s.name))) for s in group
                ],
                hoverinfo="text",
            ),
            **cell,
        )
    figure.update_yaxes(
        autorange="reversed", categoryorder="array", categoryarray=rows, ticksuffix="  ", **cell
    )


def gaps(trace: Trace) -> dict[str, list[tuple[int, int, int]]]:
    """(rank, start, end) of each stretch in which a rank waits, and of each in which it is idle."""
    events, found = [*trace.spans(), *trace.transfers()], {"waits": [], "idle": []}
    first = min((event.start for event in events), default=0)
    last = max((event.end for event in events), default=0)
    for rank in range(trace.ranks):
        free = first
        for what, start, end in [*trace.spells.get(rank, ()), ("end", last, last)]:
            if start > free:
                found["idle"].append((rank, free, start))
            if what == "waits":
                found["waits"].append((rank, start, end))
            free = end
    return found


def order_of(key):
    known = list(palette.PHASES)
    return (
        known.index(key)
        if key in known
        else len(known)
        if isinstance(key, str)
        else -1
        if key is None
        else key
    )


def hover(trace: Trace, span, start: int, wait: Waited | None) -> str:
    """The lines that name a box: times, version, and until when its lane was free."""

    def time(ticks):
        return duration(trace.units(ticks), trace.unit)

    lines = [
        f"<b>{span.name}</b>  {words.row_name((span.rank, span.lane))}",
        f"{time(span.start - start)} to {time(span.end - start)} ({time(span.end - span.start)})",
    ]
    if span.version is not None:
        lines.append(f"weight version {span.version}")
    if wait:
        message = wait.message
        lines.append(
            f"its lane was free for {time(wait.ticks)} before it"
            + (
                f", until {message.name} came from rank {message.src}, {size(message.bytes)}"
                if message
                else ""
            )
        )
    return "<br>".join(lines)
