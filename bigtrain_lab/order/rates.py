"""What a trace of training and of reading says about speed and state: steps a second, sentences a
second, bytes to keep.

A training step is F, B, U and what lies between, a look at the gradients too; a reading is an A, a
forward that records nothing, and of several the median, which a pause of the machine does not move.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..core import COLLECTIVES, Memory, Scalar, Trace, Transfer, grouped, peak, refuse
from ..core.trace import ACTION, once
from .plan import Serve, Turns

CALLED = re.compile(r"\d+([FB])\d+\.\d+ (.+?)(?: forward| backward|: .*)?$")

TRUST, STEP = "trust ratio ", "relative step "  # and a layer: what a run logs of it
TEST_LOSS, ACCURACY = "test loss", "test accuracy"


def of_layers(trace: Trace, what: str) -> dict[str, list[float]]:
    """Layer -> all that rank 0 logged of it: its TRUST or its STEP."""
    return grouped(
        (event.name.removeprefix(what), event.value)
        for event in trace.where(Scalar, rank=0)
        if event.name.startswith(what)
    )


def last(trace: Trace, name: str) -> float | None:
    """The last value that was logged under this name; None where there is none."""
    return next(reversed(samples(trace, name)), None)


def samples(trace: Trace, name: str) -> list[float]:
    """All values that were logged under this name."""
    return [event.value for event in trace.where(Scalar, name=name)]


def apart(a: Sequence[float], b: Sequence[float]) -> bool | None:
    """Whether all times of `a` are above those of `b`; None where their spreads overlap, so that
    neither is the faster."""
    return None if max(min(a), min(b)) <= min(max(a), max(b)) else min(a) > max(b)


def training_rate(trace: Trace) -> float | None:
    """Training steps in a unit of time, 1 / Trace.step_time; None where there was none."""
    return 1 / trace.step_time if trace.step_time else None


def launched(trace: Trace) -> float:
    """The share of the ranks' time in which they compute, and their devices have nothing to do
    until their host has started the next kernel, as the trace's lab prices it; 0 where it does not,
    and of part of a run."""
    facts = trace.settings.get("facts")
    share = facts.get("launch_share") if isinstance(facts, dict) else 0.0
    known = isinstance(share, float) and 0 <= share <= 1 and not trace.settings.get("unfinished")
    return trace.shares().compute * share if known and trace.clock != "measured" else 0.0


@once
def exposures(trace: Trace) -> list[tuple[int, int, int]]:
    """(rank, from, to) of each wait, in ticks, for what is on its way between replicas: gradients,
    between a rank's last backward and its first update, and parameters that are gathered."""
    found = []
    for rank in range(trace.ranks):
        spans = trace.spans(rank)
        own = [(span.kind, span.start, span.end) for span in spans if span.lane == "compute"]
        lane = [span for span in spans if span.lane == "comm:dp"]
        gathers = [span.end for span in lane if span.kind == "all_gather"]
        scatters = {span.end for span in lane if span.kind == "reduce_scatter"}
        if gathers:
            own = [("", spans[0].start, spans[0].start), *own, ("", max(gathers), max(gathers))]
        for (kind, _, end), (following, start, _) in pairwise(own):
            if following != "U" or kind == "U":  # what else it waited for is not of replicas
                own_gathers = gathers[bisect_right(gathers, end) : bisect_right(gathers, start)]
                # a gradient that waits for the one before leaves when that has arrived
                start = start if start in scatters else max(own_gathers, default=end)
            if start > end:
                found.append((rank, end, start))
    return found


def exposed(trace: Trace) -> float:
    """Time a step for which the rank that waits longest waits for gradients or parameters."""
    waits = grouped((rank, end - begin) for rank, begin, end in exposures(trace))
    return trace.units(max(map(sum, waits.values()), default=0)) / trace.steps


def sent_so_far(trace: Trace, rank: int, step: int) -> list[tuple[int, int]]:
    """(tick, bytes that the rank has sent in this step by then), where messages leave and arrive;
    the first step is 0."""
    begin, end = (trace._begin(), *trace.step_ends)[step : step + 2]
    sent, found = 0, [(begin, 0)]
    for message in sorted(trace.transfers(rank), key=lambda t: t.end):
        if begin < message.end <= end:
            found.append((max(message.start, found[-1][0]), sent))
            sent += message.bytes
            found.append((message.end, sent))
    return [*found, (end, sent)]


def sent_bytes(trace: Trace) -> float:
    """Bytes that the rank which sends most sends in a step."""
    return max(map(trace.bytes_sent, range(trace.ranks))) / trace.steps


class Axis(NamedTuple):
    """What one axis of a mesh costs a step. `time`: in which a rank computes nothing, the mean over
    ranks as of Trace.shares; `bytes`: of the rank that sends most."""

    name: str
    time: float
    bytes: float


@once
def axes(trace: Trace) -> list[Axis]:
    """dp: the wait for gradients; pp: all other waits of the compute lane, bubbles among them; tp:
    the collectives inside actions, and those on the compute lane, of what slices have parts of.
    Their times add up to the shares `waits` and `idle`."""
    ranks = range(trace.ranks)
    sent = grouped(((axis_of(event), event.src), event.bytes) for event in trace.where(Transfer))
    waits = sum(end - begin for _, begin, end in exposures(trace))
    ticks = {
        "dp": waits,
        "pp": round(sum(map(trace.idle, ranks)) * trace.ticks_per_unit) - waits,
        "tp": sum(
            span.end - span.start
            for span in trace.spans()
            if span.kind in COLLECTIVES and axis_of(span) == "tp"
        ),
    }
    return [
        Axis(
            name,
            trace.units(spent) / trace.ranks / trace.steps,
            max(sum(sent.get((name, rank), ())) for rank in ranks) / trace.steps,
        )
        for name, spent in ticks.items()
    ]


class Called(NamedTuple):
    """The collectives that a module calls inside forwards (`way` F) or backwards (B): `times` a
    step, and bytes that a rank sends."""

    module: str
    way: str
    times: float
    bytes: float


def called(trace: Trace) -> list[Called]:
    """Of rank 0, in the order of a step: "1F0.1 layers.1.mlp.down forward" is the second one of
    layer 1's forward."""
    found = grouped(
        ((inside[2], inside[1]), event.bytes)
        for event in trace.transfers(0)
        if (inside := CALLED.match(event.name))
    )
    return [
        Called(*key, len(own) / trace.steps, sum(own) / trace.steps) for key, own in found.items()
    ]


def axis_of(event) -> str:
    """The axis whose ranks a message or a collective joins."""
    on_lane = event.lane.removeprefix("comm:")
    return on_lane if on_lane != "compute" else "tp" if event.kind in COLLECTIVES else "pp"


def reading_rate(trace: Trace) -> float | None:
    """Forwards without a graph in a unit of time of rank 0; None where there was none."""
    ticks = [span.end - span.start for span in trace.spans(0) if span.kind == "A"]
    return 1 / trace.units(middle) if ticks and (middle := median(ticks)) else None


def checkpoint_bytes(trace: Trace) -> int:
    """What rank 0 must keep to go on: weights, masters and the optimizer's state, as they are at
    the end."""
    held = {event.kind: event.bytes for event in trace.where(Memory, rank=0, inside=False)}
    return sum(held.get(kind, 0) for kind in ("weights", "master", "optimizer"))


def peak_bytes(trace: Trace, rank: int = 0) -> int:
    """The most that a rank held: inside actions too where a ledger followed them, else at their
    ends."""
    most = peak(trace, rank)
    return most.bytes if most else 0


def fullest_bytes(trace: Trace) -> int:
    """The most that any rank held."""
    return max(peak_bytes(trace, rank) for rank in range(trace.ranks))


class Level(NamedTuple):
    """What a level of precision comes to; rates by clock ("modelled", "measured"), in training
    steps and readings a second."""

    name: str
    training: dict[str, float]
    reading: dict[str, float]
    micro: float | None
    macro: float | None
    checkpoint_bytes: int
    peak_bytes: int
    losses: tuple[float, ...]
    skipped: int


def field(traces: Iterable[Trace]) -> list[Level]:
    """The table of the field: traces of the experiment `precision`, one or both clocks of each
    level, in their order."""
    traces = list(traces)
    refuse(
        (
            any("level" not in trace.settings for trace in traces),
            "This trace tells no level of precision: take traces of the experiment precision.",
        )
    )
    return [
        level_of(name, own)
        for name, own in grouped((trace.settings["level"], trace) for trace in traces).items()
    ]


def level_of(name: str, traces: list[Trace]) -> Level:
    one = traces[0]
    return Level(
        name,
        {t.clock: training_rate(t) for t in traces},
        {t.clock: reading_rate(t) for t in traces},
        last(one, "micro F1"),
        last(one, "macro F1"),
        checkpoint_bytes(one),
        peak_bytes(one),
        tuple(event.value for event in one.where(Scalar, name="loss")),
        int(last(one, "skipped steps") or 0),
    )


class Applied(NamedTuple):
    """A worker's gradient at a server, applied at a tick. `staleness`: updates that the server had
    made since that worker last read its weights."""

    server: int
    worker: int
    batch: int
    at: int
    staleness: int


def applied(
    trace: Trace, requests: Sequence[int], bound: int | None = None, synchronous: bool = False
) -> list[Applied]:
    """All that the servers of a trace applied, server by server in their order: who reads when
    follows from who asked in which order. Arguments as of techniques.parameter_server.order."""
    workers, found = tuple(range(len(requests))), []
    each = len(requests) if synchronous else 1  # gradients of an update
    for server in range(len(requests), trace.ranks):
        turns = Turns(Serve(workers, tuple(requests), bound=0 if synchronous else bound))
        read = [0] * len(requests)
        served = [
            (span.end, *map(int, ACTION.fullmatch(span.name).group(1, 3)))
            for span in trace.spans(server)
            if span.kind == "S"
        ]
        for count, (end, worker, batch) in enumerate(served):
            found.append(Applied(server, worker, batch, end, count // each - read[worker]))
            turns.has(worker, end)
            turns.take()
            for place, _ in turns.due():
                turns.answered(place, end)
                read[place] = (count + 1) // each
    return found
