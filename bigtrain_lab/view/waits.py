"""Who waited for whom when a run failed, as one SVG: a circle a rank, an arrow to each rank that it
waits for.

Arrows to higher ranks pass above, arrows to lower ones below, so the two of a cycle are told apart;
the cycle of a deadlock is thick and red, and so is a rank that failed. Under each rank is what it
was at, and the line. Text and arrows take the colour of the page around them.
"""

import re
from html import escape
from math import hypot
from pathlib import PurePath

RED, RADIUS, WIDE = "#D9480F", 15, 118
WHITE, BOLD = ' fill="#fff"', f' font-weight="600" fill="{RED}"'
NOTES = 40  # height of the words under a rank


def drawing(waits) -> str:
    """The SVG of `Run.waits`; "" where nobody waits for anybody."""
    arrows = [(state, other) for state in waits for other in state.on]
    if not arrows:
        return ""
    above = max((height(s.rank, o) for s, o in arrows if o > s.rank), default=0)
    below = max((height(s.rank, o) for s, o in arrows if o < s.rank), default=0)
    y = RADIUS + 6 + (above + 14 if above else 0)
    floor = y + RADIUS + (max(0, below - RADIUS) + 14 if below else 0) + 14
    width, tall = WIDE * len(waits), floor + NOTES
    parts = (
        *(
            arrow(s.rank, o, y, s.what if len(s.on) == 1 else "", s.cycle and waits[o].cycle)
            for s, o in arrows
        ),
        *(node(state, y, floor) for state in waits),
    )
    told = "; ".join(
        f"{words(s)}{f' for {s.what}' if s.state == 'waits' and len(s.on) == 1 else ''}"
        for s in waits
    )
    return (
        f'<svg role="img" aria-label="{escape(told)}" viewBox="0 0 {width} {tall}" width="{width}"'
        f' height="{tall}" '
        f'font-family="system-ui, sans-serif" font-size="11.5" text-anchor="middle"'
        f' fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def words(state) -> str:
    """What a rank was at, in a few words; an arrow to a single rank says what for."""
    if state.state == "waits" and len(state.on) > 1:
        return f"rank {state.rank}: {state.what}"
    at = {"works": state.what or "at work", "failed": state.what}.get(state.state, state.state)
    return (
        f"rank {state.rank}: {at}"
        if state.state in ("works", "failed")
        else f"rank {state.rank} {at}"
    )


def place(line: str) -> str:
    """The line of a rank, short: pipeline.py:96."""
    where = line.partition(", in ")[0]
    if cell := re.match(r"line (\d+) of a notebook cell", where):
        return f"cell, line {cell[1]}"
    return PurePath(where).name


def centre(rank: int) -> float:
    return WIDE * (rank + 0.5)


def height(src: int, dst: int) -> float:
    """How far an arrow's bow leaves the row of ranks."""
    return 20 + 13 * min(abs(src - dst), 6)


def node(state, y: float, floor: float) -> str:
    """A rank: its circle, and below all arrows what it was at."""
    x, failed = centre(state.rank), state.state == "failed"
    red = failed or state.cycle
    look = (
        f'fill="{RED}" stroke="{RED}"'
        if failed
        else f'fill="none" stroke="{RED if red else "currentColor"}"'
    )
    dash = ' stroke-dasharray="3 3"' if state.state in ("finished", "not begun") else ""
    return (
        f'<circle cx="{x}" cy="{y}" r="{RADIUS}" {look}{dash}'
        f' stroke-width="{2.4 if red else 1.3}"/>'
        f'<text x="{x}" y="{y + 4}" font-weight="600"{WHITE if failed else ""}>{state.rank}</text>'
        f'<text x="{x}"'
        f' y="{floor + 6}"{BOLD if failed else ""}>{escape(shortened(words(state)))}</text>'
        f'<text x="{x}" y="{floor + 22}" opacity=".7"><title>{escape(state.line)}</title>'
        f"{escape(shortened(place(state.line)))}</text>"
    )


def arrow(src: int, dst: int, y: float, label: str, hot: bool) -> str:
    """From the rank that waits to the one that it waits for."""
    up = -1 if dst > src else 1  # and to the right
    bow = height(src, dst)
    x0, y0 = centre(src) - up * RADIUS * 0.75, y + up * RADIUS * 0.75
    x1, y1 = centre(dst) + up * (RADIUS * 0.75 + 2), y + up * (RADIUS * 0.75 + 2)
    middle, control = (
        (x0 + x1) / 2,
        y + up * (2 * bow - RADIUS * 0.75),
    )  # a parabola reaches half of its control's height
    dx, dy = x1 - middle, y1 - control
    length = hypot(dx, dy)
    dx, dy = dx / length, dy / length
    tip = (
        f"{x1:.1f},{y1:.1f} {x1 - 8 * dx - 4 * dy:.1f},{y1 - 8 * dy + 4 * dx:.1f}"
        f" {x1 - 8 * dx + 4 * dy:.1f},{y1 - 8 * dy - 4 * dx:.1f}"
    )
    colour, weight = (RED, 2.4) if hot else ("currentColor", 1.2)
    text_y = y + up * bow + (-5 if up < 0 else 13)
    return (
        f'<path d="M{x0:.1f} {y0:.1f} Q{middle:.1f} {control:.1f} {x1 - 6 * dx:.1f}'
        f' {y1 - 6 * dy:.1f}" fill="none" stroke="{colour}" stroke-width="{weight}"/><polygon'
        f' points="{tip}" fill="{colour}"/><text x="{middle:.1f}"'
        f' y="{text_y:.1f}"{BOLD if hot else ""}>{escape(shortened(label))}</text>'
    )


def shortened(text: str, most: int = 20) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
