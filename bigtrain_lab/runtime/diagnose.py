"""From logs and statuses to a few readable lines: which rank failed, where and why, and what the others were doing.

The earliest failure that is nobody's consequence is the culprit: a rank that lost its connection is a victim. In a hang
the guilty rank is the one that is not waiting. A deadlock is certain, without a time limit, when every rank waits for a
message that its sender, itself waiting or done, has not sent: each log is written before its rank blocks.
"""

import json
import signal
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from . import frames
from .log import Mark, Tail
from .process import FAILED, UNWRITABLE


class Exit(NamedTuple):
    """How a rank's process ended: its code (negative: a signal), and when it was seen, in ns since the run began."""

    code: int
    wall: int


class Doing:
    """The last thing that a rank's log says it did, kept up to date with `follow`."""

    def __init__(self, directory: Path, rank: int):
        self.rank, self._tail = rank, Tail(Path(directory) / f"events-{rank}.jsonl")
        self.last = self.span = None
        self.sent, self.got = Counter(), Counter()  # (peer, channel) -> messages
        self.wants = None  # (src, channel, label) that it waits for
        self.labels = {}  # channel -> what its messages are called

    def follow(self) -> None:
        for item in self._tail.new():
            if isinstance(item, Mark):
                self._mark(item)
            elif hasattr(item.measured, "version"):
                self.span, self.last = item.measured.name, "span"

    def _mark(self, mark: Mark) -> None:
        if mark.what == "send":
            dst, channel, self.labels[channel] = mark.about
            self.sent[dst, channel] += 1
            return
        if mark.what == "got" and self.wants:
            self.got[self.wants[0], self.wants[1]] += 1
        self.wants = mark.about if mark.what == "wait" else None
        self.last = mark.what
        if mark.what == "enter":
            self.span = mark.about[0]

    def __str__(self) -> str:
        match self.last:
            case None:
                return f"rank {self.rank} had not begun"
            case "wait" if self.wants[0] is None:
                return f"rank {self.rank} waits for all ranks in {self.wants[2]}"
            case "wait":
                return f"rank {self.rank} waits for {self.wants[2] or 'a message'} from rank {self.wants[0]}"
            case "finish":
                return f"rank {self.rank} has ended its part and waits until its messages are taken"
            case "done":
                return f"rank {self.rank} had finished"
            case "enter":
                return f"rank {self.rank} was in {self.span}"
        return f"rank {self.rank} had done {self.span}" if self.span else f"rank {self.rank} had done no step yet"


def deadlock(doings: list[Doing]) -> str | None:
    """The sentence of a certain deadlock, with its cycle; None where there is none. Follow the logs before."""
    if any(d.last not in ("wait", "finish", "done") for d in doings) or all(d.last == "done" for d in doings):
        return None
    waiting = [d for d in doings if d.last == "wait"]
    for d in waiting:
        src, channel, _ = d.wants
        if src is None or doings[src].sent[d.rank, channel] > d.got[src, channel]:
            return None  # a collective, or a message on its way
    if not waiting:
        return None
    chain = [waiting[0]]
    while (following := doings[chain[-1].wants[0]]) not in chain:
        if following.last != "wait":
            over = "has finished without sending it" if following.last == "done" else "has ended its part without sending it"
            return f"{_capital(chain[-1])}, which {over}. " + _rest(doings, {chain[-1].rank, following.rank})
        chain.append(following)
    cycle = chain[chain.index(following):]
    return "Deadlock: " + "; ".join(map(str, cycle)) + ". " + _rest(doings, {d.rank for d in cycle})


def hang(directory: Path, doings: list[Doing], stall_s: float) -> str:
    """The sentences of a run whose logs stopped growing; stacks were asked for before."""
    guilty = [d for d in doings if d.last not in ("wait", "finish", "done")] or [d for d in doings if d.last != "done"]
    lines = []
    for d in guilty:
        dump = Path(directory) / f"stacks-{d.rank}.txt"
        place = frames.of_dump(dump.read_text(errors="replace")) if dump.exists() else None
        lines.append(f"Rank {d.rank} hangs: no progress for {stall_s:g} s" + (f" at {place}" if place else "") + f" ({d}).")
    return "\n".join([*lines, _rest(doings, {d.rank for d in guilty})]).strip()


def failure(directory: Path, doings: list[Doing], exits: dict[int, Exit]) -> str:
    """The sentences of a run in which a process ended without finishing."""
    culprit = culprit_of(directory, exits)
    if culprit is None:
        return "The run ended before its ranks were done. " + _rest(doings, set())
    return "\n".join(filter(None, [_reason(directory, doings, culprit, exits.get(culprit)), _rest(doings, {culprit})]))


def culprit_of(directory: Path, exits: dict[int, Exit]) -> int | None:
    """The rank whose failure came first and is not another's consequence; a victim only where there is nobody else."""
    found = []
    for rank, exit in exits.items():
        status = status_of(directory, rank)
        if status.get("state") == "failed":
            found.append((status["victim"], status["wall"], rank))
        elif exit.code or not status:
            found.append((False, exit.wall, rank))
    return min(found)[2] if found else None


def has_culprit(directory: Path, exits: dict[int, Exit]) -> bool:
    """Whether somebody other than a victim has failed yet."""
    statuses = {rank: status_of(directory, rank) for rank in exits}
    return any((exit.code or not statuses[rank]) and not statuses[rank].get("victim") for rank, exit in exits.items())


def status_of(directory: Path, rank: int) -> dict:
    """What a rank said at its end; {} where it said nothing."""
    try:
        return json.loads((Path(directory) / f"status-{rank}.json").read_text())
    except (OSError, ValueError):
        return {}


def _reason(directory: Path, doings: list[Doing], rank: int, exit: Exit | None) -> str:
    doing, status = doings[rank], status_of(directory, rank)
    if status.get("state") == "failed":
        place = f"\n  at {frames.Place(*status['place'])}" if status.get("place") else ""
        if status["type"] == "SystemExit":
            return f"Rank {rank} left its program by sys.exit({status['message']}).{place}"
        if status["victim"]:
            return _unanswered(doings, doing) or f"{status['message']}; that rank ended before."
        return f"Rank {rank} failed: {status['type']}: {status['message']}{place}"
    code, last = exit.code if exit else FAILED, f"; {doing}"
    if code == UNWRITABLE:
        return f"Rank {rank} cannot write to {directory}: free some space or choose another directory."
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "a signal"
        hint = "; out of memory?" if name == "SIGKILL" else ""
        return f"Rank {rank} was killed by signal {-code} ({name}{hint}){last}.{_crash(directory, rank)}"
    return f"Rank {rank} exited with code {code} before its program returned (os._exit?){last}."


def _unanswered(doings: list[Doing], doing: Doing) -> str | None:
    """Of a rank that lost its connection and no rank had failed: which message had no other end."""
    if doing.wants and doing.wants[0] is not None and doings[doing.wants[0]].last == "done":
        return f"{_capital(doing)}, which has finished without sending it."
    for (dst, channel), count in doing.sent.items():
        if count > doings[dst].got[doing.rank, channel]:
            return f"Rank {doing.rank} sent {doing.labels[channel] or 'a message'} to rank {dst}, which has finished without taking it."
    return None


def _crash(directory: Path, rank: int) -> str:
    dump = Path(directory) / f"stacks-{rank}.txt"
    text = dump.read_text(errors="replace") if dump.exists() else ""
    place = frames.of_dump(text) if "Fatal Python error" in text else None
    return f"\n  at {place}" if place else ""


def _rest(doings: list[Doing], told: set[int]) -> str:
    others = [str(d) for d in doings if d.rank not in told]
    return f"Meanwhile {'; '.join(others)}." if others else ""


def _capital(value) -> str:
    text = str(value)
    return text[0].upper() + text[1:]
