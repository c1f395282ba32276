"""From logs to a few readable lines: which rank failed, where and why, and what the
others were doing.

The earliest failure that is nobody's consequence is the culprit: a rank that lost its connection is
a victim. In a hang the guilty rank is the one that is not waiting. A deadlock (waits.py) is
certain, without a time limit.
"""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ...core import grouped
from ..memory.capacity import OutOfMemory
from ..process.end import UNWRITABLE
from ..process.pulse import REMEDIES
from ..record.kept import returned
from ..talk.lanes import LaneFailed
from . import frames
from .wait_graph import (
    BLOCKED,
    At,
    Doing,
    RankState,
    knot,
    ranks,
    said,
    state_of,
    untaken,
    waited_for,
)

WITHOUT = {"wait": "sending", "await": "launching"}  # what a lane waits for -> what nobody does


class Exit(NamedTuple):
    """How a rank's process ended: its code (negative: a signal; None: nobody saw), and when it was
    seen, in ns since the run began."""

    code: int | None
    wall: int


def deadlock(doings: list[Doing]) -> str | None:
    """The sentence of a certain deadlock, with its cycle; None where there is none. Follow the logs
    before."""
    stuck = knot(doings)
    if not stuck:
        return None
    if failed := lane_failure(doings):
        return failed
    waits = f"Deadlock: {'; '.join(said(doings, at) for at in stuck)}."
    return f"{_unanswered(doings, stuck[0]) or waits} {_rest(doings, stuck)}".rstrip()


def lane_failure(doings: list[Doing]) -> str | None:
    """The sentences of a failure on a lane, which its program has not come to ask for; None
    where there is none."""
    failed = [at for doing in doings for at in doing.lanes.values() if at.last == "failed"]
    return "\n".join(filter(None, [failed[0].failure, _rest(doings, failed)])) if failed else None


def lines(directory: Path, doings: list[Doing]) -> str:
    """Where in its program each lane is, one line a place; stacks were asked for before."""
    places = grouped(
        (("" if at.lane == "compute" else f", lane {at.lane},", line), at.rank)
        for at in _live(doings)
        if at.last != "failed" and (line := line_of(directory, doings[at.rank], at.thread))
    )
    return "".join(f"\n  {ranks(who)}{where} at {line}" for (where, line), who in places.items())


def line_of(directory: Path, doing: Doing, thread: int | None = None) -> str:
    """Where a rank failed, or where it (or one of its threads) was when stacks were asked for;
    "" where neither is known."""
    if doing.raised and doing.raised.place:
        return str(frames.Place(*doing.raised.place))
    return str(frames.of_dump(frames.dumped(directory / f"stacks-{doing.rank}.txt"), thread) or "")


def states(
    directory: Path, doings: list[Doing], exits: dict[int, Exit], kept: Mapping[int, str]
) -> list[RankState]:
    """What each rank was at when the run failed, for a picture of who waits for whom. `kept`: as
    for a hang."""
    stuck, (culprit, _) = knot(doings), culprit_of(directory, doings, exits)
    failed = kept if culprit is None else {culprit: _cause(doings[culprit], exits[culprit].code)}
    found = [state_of(doings, doing, line_of(directory, doing), stuck) for doing in doings]
    return [
        state._replace(
            state="failed",
            what=f"{failed[state.rank]}{f', {state.what}' * state.what.startswith('in ')}",
            on=(),
        )
        if state.rank in failed
        else state
        for state in found
    ]


def _cause(doing: Doing, code: int | None) -> str:
    """How a rank ended, in a word or two."""
    if doing.raised:
        return "no memory" if doing.raised.type == OutOfMemory.__name__ else doing.raised.type
    return (
        "ended without a word"
        if code is None
        else _signal(code)
        if code < 0
        else f"exit code {code}"
    )


def _signal(code: int) -> str:
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"


def hang(directory: Path, doings: list[Doing], stall_s: float, kept: Mapping[int, str]) -> str:
    """The sentences of a run in which nobody works any more; stacks were asked for before. Guilty
    is who is kept from working; else who waits for nobody; else who could go on, since what it
    waits for was sent.

    kept   rank -> what keeps its process, in words (pulse.py)
    """
    if failed := lane_failure(doings):
        return failed
    live = _live(doings)
    held = [at for at in live if at.rank in kept and at.lane == "compute"]
    works = [
        at
        for at in live
        if at.last not in (*BLOCKED, "meet")
        and at.rank not in kept
        and not (held and at.last is None)
    ]
    ready = [at for at in live if not waited_for(doings, at)]
    guilty = [at for at in live if at in held or at in works] or ready or live
    lines = []
    for at in guilty:
        if how := kept.get(at.rank):
            lines.append(
                f"Rank {at.rank} is {how}: no progress for {stall_s:g} s ({said(doings, at)})."
                f" {REMEDIES[how]}"
            )
            continue
        where = f" at {place}" if (place := line_of(directory, doings[at.rank], at.thread)) else ""
        sent = "; all that it waits for was sent" if at.last == "wait" and at in ready else ""
        lines.append(
            f"{_capital(at.who)} hangs: no progress for {stall_s:g} s{where}"
            f" ({said(doings, at)}{sent})."
        )
    return "\n".join([*lines, _rest(doings, guilty)]).strip()


def failure(directory: Path, doings: list[Doing], exits: dict[int, Exit]) -> str:
    """The sentences of a run in which a process ended without finishing."""
    culprit, _ = culprit_of(directory, doings, exits)
    if culprit is None:
        return f"The run ended before its ranks were done. {_rest(doings, ())}".rstrip()
    return "\n".join(
        filter(
            None,
            (
                _reason(directory, doings, culprit, exits[culprit].code),
                _rest(doings, doings[culprit].lanes.values()),
            ),
        )
    )


def culprit_of(
    directory: Path, doings: list[Doing], exits: dict[int, Exit]
) -> tuple[int | None, bool]:
    """The rank whose failure came first and is not another's consequence, and True; a victim and
    False where there is nobody else yet."""
    found = []
    for rank, exit in exits.items():
        if raised := doings[rank].raised:
            found.append((raised.victim, raised.wall, rank))
        elif exit.code or not returned(directory, rank):
            found.append((False, exit.wall, rank))
    victim, _, rank = min(found, default=(True, 0, None))
    return rank, not victim


def _reason(directory: Path, doings: list[Doing], rank: int, code: int | None) -> str:
    doing = doings[rank]
    if raised := doing.raised:
        place = f"\n  at {frames.Place(*raised.place)}" if raised.place else ""
        if raised.type == "SystemExit":
            return f"Rank {rank} left its program by sys.exit({raised.message}).{place}"
        if raised.victim:
            lanes = sorted(
                doing.awake, key=lambda at: at is doing.main
            )  # the program waits for them
            told = filter(None, (_unanswered(doings, at) for at in lanes))
            return next(told, f"{raised.message}; that rank ended before.")
        if raised.type in (OutOfMemory.__name__, LaneFailed.__name__):  # they name the rank
            return f"{raised.message}{place}"
        return f"Rank {rank} failed: {raised.type}: {raised.message}{place}"
    last = f"; {said(doings, doing.main)}"
    if code is None:
        return f"Rank {rank} ended before its program returned (killed, or os._exit?){last}."
    if code == UNWRITABLE:
        return (
            f"Rank {rank} cannot write to {directory}: free some space or choose another directory."
        )
    if code < 0:
        hint = "; out of host memory?" if -code == signal.SIGKILL else ""
        return (
            f"Rank {rank} was killed by signal {-code}"
            f" ({_signal(code)}{hint}){last}.{_crash(directory, rank)}"
        )
    return f"Rank {rank} exited with code {code} before its program returned (os._exit?){last}."


def _unanswered(doings: list[Doing], at: At) -> str | None:
    """Which message, or collective, of a lane has no other end, since a rank has finished; None
    where no such rank keeps it."""
    if any(other.last == "done" for other in waited_for(doings, at)) and at.last in WITHOUT:
        verb = "calling" if at.wants and at.wants.src is None else WITHOUT[at.last]
        return f"{_capital(said(doings, at))}, which has finished without {verb} it."
    return next(
        (
            f"{_capital(at.who)} sent {doings[at.rank].labels[channel] or 'a message'} to rank"
            f" {dst}, which has finished without taking it."
            for dst, channel in untaken(doings, at)
            if doings[dst].main.last == "done"
        ),
        None,
    )


def _crash(directory: Path, rank: int) -> str:
    text = frames.dumped(directory / f"stacks-{rank}.txt")
    place = frames.of_dump(text) if "Fatal Python error" in text else None
    return f"\n  at {place}" if place else ""


def _live(doings: list[Doing]) -> list[At]:
    """The lanes that are not idle, of ranks that have not finished."""
    return [at for doing in doings if doing.main.last != "done" for at in doing.awake]


def _rest(doings: list[Doing], told) -> str:
    """What the lanes are at that were not told."""
    others = [said(doings, at) for doing in doings for at in doing.awake if at not in told]
    return f"Meanwhile {'; '.join(others)}." if others else ""


def _capital(value) -> str:
    text = str(value)
    return text[0].upper() + text[1:]
