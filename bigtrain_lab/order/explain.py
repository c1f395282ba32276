"""Why a rank waits, one sentence for each bubble, read off the trace and the schedule's needs; who
would not have memory enough."""

from dataclasses import replace

from ..core import (
    Impossible,
    Peak,
    Scalar,
    Span,
    Trace,
    by_kind,
    counted,
    duration,
    peak,
    ranks as listed,
    readings,
    size,
)
from ..core.trace import ACTION
from .schedule import KINDS, Action, Schedule
from .simulate import simulate

SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1, "U": 0}
UNEVEN = 0.05  # idle share that no number of micro-batches mends, from which on it is told
NOT_FINITE = (  # the kind of a scalar that says what was a rank's first value that is not finite
    "not finite"
)


def bubbles(trace: Trace, schedule: Schedule) -> list[str]:
    """For each rank: its gap at the start, its longest gap in the middle, its gap at the end, where
    there are any. A message may be on its way in a gap: see Trace.shares.

    Of a synchronous schedule the first batch is told, since the others repeat it.
    """
    spans = {
        rank: [s for s in trace.spans(rank) if s.end > s.start and told(s.name, schedule)]
        for rank in range(trace.ranks)
    }
    if not any(spans.values()):
        return []
    begin = min(s.start for own in spans.values() for s in own)
    end = max(s.end for own in spans.values() for s in own)
    sentences, shares = [], trace.shares()
    for rank, own in spans.items():
        if not own:
            continue
        who = f"Rank {rank} {'idles or waits' if shares.waits else 'idles'}"
        if (wait := own[0].start - begin) > 0:
            crossed = ranks_before(Action.parse(own[0].name.split("+")[0]), schedule)
            sentences.append(
                f"{who} {amount(trace, wait)} first: nothing reaches it before"
                f" {short(own[0].name, schedule)} has crossed {listed(crossed)}."
            )
        sentences += middle(who, own, trace, schedule)
        if (wait := end - own[-1].end) > 0:
            left = [
                r
                for r, others in spans.items()
                if any(s.end > own[-1].end and s.kind[0] in "BI" for s in others)
            ]
            what = (
                f"and the last gradients still have to cross {listed(sorted(left, reverse=True))}"
                if left
                else "and other ranks still have work of their own"
            )
            sentences.append(f"{who} {amount(trace, wait)} at the end: its part is done, {what}.")
    if shares.compute < 1:
        waits = f", and {100 * shares.waits:.1f}% waits for messages" if shares.waits else ""
        sentences.append(
            f"In all, {100 * shares.idle:.1f}% of the ranks' time is"
            f" idle{waits}{the_whole(spans, schedule)}"
        )
    return sentences


def middle(who: str, own: list[Span], trace: Trace, schedule: Schedule) -> list[str]:
    """The longest of a rank's gaps between its first action and its last, how many are like it, and
    how many are for the other thing that a rank can need. `who`: the sentence's subject and
    verb."""
    waits: dict[str, list[tuple[int, Span]]] = {"input": [], "gradient": []}
    for before, after in zip(own, own[1:]):
        action = Action.parse(after.name.split("+")[0])
        if after.start > before.end and action.kind in "FBI" and ranks_before(action, schedule):
            waits["input" if action.kind == "F" else "gradient"].append(
                (after.start - before.end, after)
            )
    (kind, like), (other, unlike) = sorted(
        waits.items(), key=lambda of: max((wait for wait, _ in of[1]), default=0), reverse=True
    )
    if not like:
        return []
    wait, after = max(like, key=lambda of: of[0])
    what = {"input": "input has crossed", "gradient": "gradient has come back through"}[kind]
    way = listed(ranks_before(Action.parse(after.name.split("+")[0]), schedule))
    said = (
        f"{who} {amount(trace, wait)} before {short(after.name, schedule)}: it cannot"
        f" start until its {what} {way}."
    )
    if len(like) > 1:
        said += f" {len(like)} such gaps take {amount(trace, sum(wait for wait, _ in like))}."
    if unlike:
        one = len(unlike) == 1
        said += (
            f" {len(unlike)} gap{'' if one else 's'} for {other}s take{'s' if one else ''}"
            f" {amount(trace, sum(wait for wait, _ in unlike))}."
        )
    return [said]


def the_whole(spans: dict[int, list[Span]], schedule: Schedule) -> str:
    """Why the ranks idle as long as they do in all, and what would make it less: the end of a
    sentence, and one more."""
    in_time = sorted((s for own in spans.values() for s in own), key=lambda s: (s.start, s.end))
    if all(after.start >= before.end for before, after in zip(in_time, in_time[1:])):
        return ": one rank works at a time, into however many micro-batches a batch is cut."
    if schedule.asynchronous:
        return (
            ". It fills the pipeline once and drains it once, and not at the updates between, so a"
            " longer run makes the share smaller."
        )
    busy = {rank: sum(s.end - s.start for s in own) for rank, own in spans.items()}
    most = max(busy, key=busy.get)
    if (limit := 1 - sum(busy.values()) / (len(busy) * busy[most])) > UNEVEN:
        return (
            f". Rank {most} has the most work and the others idle meanwhile: {100 * limit:.1f}%"
            " would be idle however many micro-batches there are. The rest is filling and draining"
            " the pipeline."
        )
    if not shrinks(schedule):
        return "."
    return (
        ". A batch fills and drains the pipeline once, so cutting it into more micro-batches makes"
        " the share smaller."
    )


def shrinks(schedule: Schedule) -> bool:
    """True where twice the micro-batches leave a smaller share idle; False for an order that is
    written down, also one cut into layers: it has as many as it has."""
    try:
        longer = replace(schedule, micro_batches=2 * schedule.micro_batches)
        return simulate(longer, SLOTS).bubble() < simulate(schedule, SLOTS).bubble()
    except Impossible:
        return False


def not_finite(trace: Trace) -> list[str]:
    """Where a NaN or an infinity began, in a sentence: the first rank in time that sent or reported
    one, and the first report, such as a loss. Nothing where all was finite."""
    found = sorted(
        (e for e in trace if isinstance(e, Scalar) and e.kind == NOT_FINITE),
        key=lambda e: (e.start, " in " in e.name),
    )  # a message comes before what it reaches at once
    if not found:
        return []
    first, sent = found[0], [e for e in found if " in " not in e.name]
    said = [f"Not finite (NaN or infinity): it began on rank {first.rank}"]
    if sent:
        said.append(
            f"rank {sent[0].rank} sent the first such value in {sent[0].name}"
            + (", and all that it had received was finite" if sent[0] is first else "")
        )
    said += [
        f"the first report of one is the {e.name} (rank {e.rank})" for e in found if e not in sent
    ][:1]
    return ["; ".join(said) + "."]


def excesses(trace: Trace, capacity_bytes: int | None) -> list[Peak]:
    """Of each rank that holds more than its device does, when it first does and what; the first in
    time first."""
    found = (
        next((read for read in readings(trace, rank) if read.bytes > capacity_bytes), None)
        for rank in range(trace.ranks if capacity_bytes is not None else 0)
    )
    return sorted(filter(None, found), key=lambda read: (read.start, read.rank))


def does_not_fit(trace: Trace, capacity_bytes: int | None, relief: str = "") -> list[str]:
    """That a prediction does not fit into its devices, in a sentence: which rank at which action,
    how many bytes of what, and `relief`, what would need less. Nothing where it fits."""
    found = excesses(trace, capacity_bytes)
    if trace.clock != "predicted" or not found:
        return []
    first, *others = found
    most = peak(trace, first.rank).bytes
    said = (
        f"It does not fit: rank {first.rank} would hold {size(first.bytes)} {first.place}"
        f" ({by_kind(first.held)}), {counted(first.bytes - capacity_bytes, 'byte')} more than the"
        f" {size(capacity_bytes)} of its device",
        most > first.bytes and f"its peak would be {size(most)}",
        others and f"so would {listed(sorted(each.rank for each in others))}",
    )
    return ["; ".join(filter(None, said)) + "." + (f" {relief}" if relief else "")]


def told(name: str, schedule: Schedule) -> bool:
    """Whether the span is made of actions of the schedule, the first of the batch that is told."""
    actions = [ACTION.fullmatch(part) for part in name.split("+")]
    return all(
        action and int(action[1]) < schedule.stages and action[2] in KINDS for action in actions
    ) and (schedule.asynchronous or int(actions[0][3]) < schedule.micro_batches)


def ranks_before(action: Action, schedule: Schedule) -> list[int]:
    """The other ranks that the value this action waits for has passed, in order of its journey."""
    stages = (
        range(action.stage) if action.kind == "F" else range(schedule.stages - 1, action.stage, -1)
    )
    ranks = [schedule.rank_of(stage, action.micro_batch) for stage in stages]
    return list(
        dict.fromkeys(r for r in ranks if r != schedule.rank_of(action.stage, action.micro_batch))
    )


def short(name: str, schedule: Schedule) -> str:
    """ "2F0" as "F0": the sentence has named the rank, which has one stage; of several it stays."""
    action = Action.parse(name.split("+")[0])
    return f"{action}" if schedule.stages > schedule.ranks else f"{action.kind}{action.micro_batch}"


def amount(trace: Trace, ticks: int) -> str:
    """Ticks in words."""
    return duration(trace.units(ticks), trace.unit)
