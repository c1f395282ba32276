"""A trace as the JSON that the player reads: times in ticks since its first event, rows, labels,
levels of memory, peaks. It needs no widget, so a page without a kernel makes it too."""

import json
import re
from itertools import repeat
from operator import attrgetter

from ..core import MEMORY_KINDS, Memory, Trace, followed, peak, readings
from ..core.waited import waited
from ..order.holdings import holdings
from . import palette, words

LEAST = 0.0005  # of the ranks' time that is idle, which a legend tells: as 0.1%
LISTED = 12  # storages of a peak that are told one by one
TOGETHER = re.compile(r"(\d+) smaller ones")  # a run's log tells those together
# readings between action boundaries that all are shown; of more, each action's highest
INSIDE = 20_000

LOOK = {
    "phases": {
        kind: [colour, palette.ink(colour), palette.PHASE_NAMES[kind]]
        for kind, colour in palette.PHASES.items()
    },
    "other": [palette.OTHER_PHASE, palette.ink(palette.OTHER_PHASE), "other"],
    "versions": [
        [palette.version(n), palette.ink(palette.version(n))]
        for n in range(len(palette.VERSIONS) * len(palette.VERSION_SHADES))
    ],
    "memory": [[kind, palette.MEMORY[kind]] for kind in MEMORY_KINDS],
    "clocks": palette.CLOCKS,
    "wait": palette.WAIT,
}


def pack(
    trace: Trace,
    step_ends: tuple[int, ...] | None = None,
    whole: Trace | None = None,
    pinned: Trace | None = None,
    plan: Trace | None = None,
) -> bytes:
    """The traces as the JSON that player.js reads; the others as of Player.show. What is shown
    alone is packed once."""
    known, key = vars(trace).setdefault("known", {}), (pack, step_ends, whole is None)
    alone = pinned is None and plan is None
    if alone and key in known:
        return known[key]
    told = packed(trace, step_ends, whole)
    if pinned is not None and comparable(trace, pinned):
        told = stacked(told, pinned)
    if plan is not None and comparable(trace, plan):
        told = behind(told, plan)
    data = json.dumps(told, separators=(",", ":")).encode()
    if alone:
        known[key] = data
    return data


def comparable(one: Trace, other: Trace) -> bool:
    """Whether two traces share a time axis. Those of other units or of a wall clock beside a
    modelled one, and collectives, are compared by tabs."""
    own, its = [(t.unit, t.ticks_per_unit, t.clock == "measured") for t in (one, other)]
    return own == its and holdings(one) is None and holdings(other) is None


def behind(told: dict, plan: Trace) -> dict:
    """With the boxes of the plan: kind, start and end by row, and the label of one that a rank had
    begun."""
    whole = packed(plan)
    done = {(told["rows"][at], name) for at, _, name, *_ in told["spans"]}
    begun = {}
    for at, _, name, label, *_ in whole["spans"]:
        rank, lane = place = whole["rows"][at]
        if rank in told["begun"] and lane == "compute" and (place, name) not in done:
            begun.setdefault(rank, (name, label))
    rows = list(dict.fromkeys((*whole["rows"], *told["rows"])))
    row = [rows.index(each) for each in told["rows"]]
    return told | {
        "rows": rows,
        "end": max(told["end"], whole["end"]),
        "step_ends": whole["step_ends"],
        "spans": [[row[at], *rest] for at, *rest in told["spans"]],
        "transfers": [
            [*rest, row[leaves], row[reaches]] for *rest, leaves, reaches in told["transfers"]
        ],
        "plan": [
            [at, kind, start, end, label * (begun.get(rows[at][0]) == (name, label))]
            for at, kind, name, label, start, end, *_ in whole["spans"]
        ],
    }


def stacked(told: dict, pinned: Trace) -> dict:
    """The rows of what is pinned under the others, without its peaks."""
    under = packed(pinned)
    ranks, rows, own = told["ranks"], len(told["rows"]), under["ranks"]
    return told | {
        "ranks": ranks + own,
        "end": max(told["end"], under["end"]),
        "pinned_step": under["step_ends"][0],
        "parts": [[ranks, told["end"]], [ranks + own, under["end"]]],
        "rows": told["rows"] + [(ranks + rank, lane) for rank, lane in under["rows"]],
        "spans": told["spans"] + [[rows + row, *rest] for row, *rest in under["spans"]],
        "transfers": told["transfers"]
        + [
            [ranks + src, ranks + dst, *rest, rows + leaves, rows + reaches]
            for src, dst, *rest, leaves, reaches in under["transfers"]
        ],
        "levels": told["levels"] + under["levels"],
        "peaks": told["peaks"] + [None] * own,
        "waits": told["waits"] + under["waits"],
        "idles": told["idles"] or under["idles"],
        "failed": told["failed"] + [ranks + rank for rank in under["failed"]],
        "begun": told["begun"] + [ranks + rank for rank in under["begun"]],
    }


def packed(
    trace: Trace, step_ends: tuple[int, ...] | None = None, whole: Trace | None = None
) -> dict:
    """What player.js reads of one trace; times in ticks since its first event."""
    start = min((e.start for e in trace.events), default=0)
    end = max((e.end for e in trace.events), default=0)
    rows = words.rows_of(trace)
    number = {row: i for i, row in enumerate(rows)}
    label, waits, deep = words.labels(trace), waited(trace), followed(whole or trace)
    spans = []
    read = {(e.rank, e.name) for e in trace.events if isinstance(e, Memory) and e.inside}
    for rank, lane, kind, name, begins, ends, version in trace.spans():
        wait = waits.get((rank, lane, name))
        message = wait and wait.message
        spans.append(
            [
                number[rank, lane],
                kind[:1],
                name,
                label[name],
                begins - start,
                ends - start,
                version,
                wait.ticks if wait else 0,
                message.name if message else "",
                message.src if message else -1,
                (rank, name) in read,
            ]
        )
    transfers = [
        [
            src,
            rank,
            kind,
            name,
            leaves - start,
            arrives - start,
            size,
            label[name],
            number.get((src, lane), number[src, "compute"]),
            number[rank, lane],
        ]
        for rank, lane, kind, name, leaves, arrives, src, size in trace.transfers()
    ]
    return {
        "clock": trace.clock,
        "unit": trace.unit,
        "ticks": trace.ticks_per_unit,
        "ranks": trace.ranks,
        "step_ends": [tick - start for tick in step_ends or trace.step_ends],
        "unfinished": bool(trace.settings.get("unfinished")),
        "failed": trace.left("failed"),
        "begun": trace.left("failed") + trace.left("in"),
        "inside": trace.left("in"),
        "idles": trace.shares().idle > LEAST,
        "parts": [[trace.ranks, end - start]],
        "end": end - start,
        "rows": rows,
        "names": words.rank_names(trace),
        "spans": spans,
        "transfers": transfers,
        "deep": deep,
        "levels": [levels(trace, rank, start) for rank in range(trace.ranks)],
        "terms": list(words.terms(trace).items()),
        "peaks": [peak_of(whole or trace, rank, start, label) for rank in range(trace.ranks)],
        "chunks": chunks_of(trace, start),
        "waits": [
            [[begin - start, end - start] for what, begin, end in own if what == "waits"]
            for own in map(trace.spells.get, range(trace.ranks), repeat(()))
        ],
    }


def chunks_of(trace: Trace, start: int) -> dict | None:
    """What player_chunks.js shows of a collective."""
    if (told := holdings(trace)) is None:
        return None
    return {
        "start": told.start,
        "changes": [[at - start, *what] for at, *what in told.changes],
        "moves": [
            [*way, leaves - start, arrives - start, held]
            for *way, leaves, arrives, held in told.moves
        ],
        "rounds": [[at - start, sentence] for at, sentence in told.rounds],
    }


def peak_of(trace: Trace, rank: int, start: int, label: dict[str, str]) -> list | None:
    """[tick, where, [[kind, bytes], ...], storages, [[kind, bytes, name, shape, dtype, module,
    action], ...]]: a rank's peak, by kind and, where the run kept a ledger, its largest
    storages."""
    if not (highest := peak(trace, rank)):
        return None
    kinds = [
        [MEMORY_KINDS.index(kind), size]
        for kind, size in highest.held.items()
        if kind in MEMORY_KINDS
    ]
    alive = [e for e in trace.at_peak(rank) if e.kind in MEMORY_KINDS and e.start == highest.start]
    counts = [
        int(several[1]) if not e.dtype and (several := TOGETHER.fullmatch(e.name)) else 1
        for e in alive
    ]
    listed = [e for e, count in zip(alive, counts) if count == 1][:LISTED]
    return [
        highest.start - start,
        highest._replace(action=label.get(highest.action, highest.action)).place,
        sorted(kinds),
        sum(counts),
        [
            [
                MEMORY_KINDS.index(e.kind),
                e.bytes,
                e.name,
                list(e.shape),
                e.dtype,
                e.module,
                label.get(e.made, e.made),
            ]
            for e in listed
        ],
    ]


def levels(trace: Trace, rank: int, start: int) -> list[list[int]]:
    """[[tick, bytes of each kind], ...] of a rank: at action boundaries, and between them on top of
    what it held at the one before."""
    read = readings(trace, rank)
    if len(read) > INSIDE:
        highest = {each.action: each for each in sorted(read, key=attrgetter("bytes"))}
        read = [each for each in read if not each.inside or each is highest[each.action]]
    return [[each.start - start, *map(each.held.get, MEMORY_KINDS, repeat(0))] for each in read]
