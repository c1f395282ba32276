"""The player: one canvas that gets a whole trace once, as bytes, and plays it in the browser without the kernel.

Schedule above, messages between its rows, memory by kind below, one time axis and one playhead through all. Playing,
stepping, scrubbing and zooming are local to the browser (player.js, player_picture.js), so a busy kernel does not stop them.
"""

import json
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import anywidget
import traitlets

from .core import MEMORY_KINDS, Memory, Span, Trace, Transfer
from .core.waited import waited
from .figures import palette, words
from .figures.timeline import rows_of

HERE = Path(__file__).parent
INSIDE = 20_000  # readings between action boundaries that all are shown; of more, those where the bytes turn

LOOK = {
    "phases": {kind: [colour, palette.ink(colour), palette.PHASE_NAMES[kind]] for kind, colour in palette.PHASES.items()},
    "other": [palette.OTHER_PHASE, palette.ink(palette.OTHER_PHASE), "other"],
    "versions": [[palette.version(n), palette.ink(palette.version(n))] for n in range(len(palette.VERSIONS) * len(palette.VERSION_SHADES))],
    "memory": [[kind, palette.MEMORY[kind]] for kind in MEMORY_KINDS],
    "clocks": palette.CLOCKS, "inside": palette.INSIDE,
}


class Player(anywidget.AnyWidget):
    """Shows a trace. `limit_bytes` draws the device's memory as a dashed line; `height` in pixels, None to fit the ranks."""

    _esm = "".join((HERE / name).read_text(encoding="utf-8") for name in ("player_picture.js", "player.js"))
    _css = (HERE / "player.css").read_text(encoding="utf-8")
    data = traitlets.Bytes(b"").tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)
    live = traitlets.Bool(False).tag(sync=True)
    look = traitlets.Dict(LOOK).tag(sync=True)
    limit_bytes = traitlets.Int(None, allow_none=True).tag(sync=True)
    height = traitlets.Int(None, allow_none=True).tag(sync=True)

    def __init__(self, trace: Trace | None = None, limit_bytes: int | None = None, height: int | None = None, **traits):
        super().__init__(limit_bytes=limit_bytes, height=height, **traits)
        self.show(trace)

    def show(self, trace: Trace | None, note: str = "", live: bool = False) -> None:
        """Replace the trace, in one message. A `note` greys it and says why; without a trace the note stands alone.

        `live`: the trace still grows, and the playhead stays at its end.
        """
        with self.hold_sync():
            self.live = live
            self.data = pack(trace) if trace is not None else b""
            self.note = note

    def play(self) -> None:
        """Play from the start."""
        self.send({"do": "play"})

    def pause(self) -> None:
        self.send({"do": "pause"})


def pack(trace: Trace) -> bytes:
    """The trace as the JSON that player.js reads; times in ticks since the first event."""
    start = min((e.start for e in trace.events), default=0)
    end = max((e.end for e in trace.events), default=0)
    rows = rows_of(trace)
    number = {row: i for i, row in enumerate(rows)}
    label, waits = words.labels(trace), waited(trace)
    spans, transfers, inside = [], [], []
    for e in trace.events:
        if isinstance(e, Span):
            wait = waits.get((e.rank, e.lane, e.name))
            message = wait and wait.message
            spans.append([number[e.rank, e.lane], e.kind[:1], e.name, label[e.name], e.start - start, e.end - start, e.version,
                          wait.ticks if wait else 0, message.name if message else "", message.src if message else -1])
        elif isinstance(e, Transfer):
            transfers.append([e.src, e.rank, e.kind, e.name, e.start - start, e.end - start, e.bytes])
        elif isinstance(e, Memory) and e.inside and e.kind in MEMORY_KINDS:
            inside.append(e)
    if len(inside) > INSIDE:
        inside = turns(inside)
    return json.dumps({
        "clock": trace.clock, "unit": trace.unit, "ticks": trace.ticks_per_unit, "ranks": trace.ranks, "steps": trace.steps,
        "unfinished": bool(trace.settings.get("unfinished")),
        "end": end - start, "rows": rows, "spans": spans, "transfers": transfers, "levels": levels(trace, start),
        "inside": [[e.rank, e.start - start, e.bytes, MEMORY_KINDS.index(e.kind)] for e in inside],
    }, separators=(",", ":")).encode()


def turns(readings: list[Memory]) -> list[Memory]:
    """Of the readings inside each action the first, the last, and those where the bytes begin to rise, to fall or to stay."""
    kept = []
    for _, group in groupby(sorted(readings, key=attrgetter("rank", "lane")), key=attrgetter("rank", "lane", "name")):
        first, *others = group
        kept.append(first)
        for before, now, after in zip([first, *others], others, others[1:]):
            if (now.bytes > before.bytes, now.bytes < before.bytes) != (after.bytes > now.bytes, after.bytes < now.bytes):
                kept.append(now)
        kept += others[-1:]
    return kept


def levels(trace: Trace, start: int) -> list[list]:
    """For each rank [[tick, bytes of each kind, ...], ...] at action boundaries: Trace.levels of all kinds in one pass."""
    held = [[0] * len(MEMORY_KINDS) for _ in range(trace.ranks)]
    column = {kind: i for i, kind in enumerate(MEMORY_KINDS)}
    found: list[list] = [[] for _ in range(trace.ranks)]
    readings = (e for e in trace.events if isinstance(e, Memory) and not e.inside and e.kind in column)
    for (rank, tick, _), changes in groupby(readings, key=attrgetter("rank", "start", "name")):
        for change in changes:
            held[rank][column[change.kind]] = change.bytes
        found[rank].append([tick - start, *held[rank]])
    return found
