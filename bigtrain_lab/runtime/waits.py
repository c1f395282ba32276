"""Who waits for whom: what each rank's log says it is at, and the graph of waits between ranks.

    rank -> rank    a message that it waits for comes from there, or that one has yet to take what it sent, or to enter the
                    collective that it is in

Each log is written before its rank blocks. So when every rank waits or has finished, and nothing that one waits for is on
its way, none will ever go on: a deadlock that is certain, without a time limit. Source: Holt 1972, Some Deadlock Properties
of Computer Systems (ACM Computing Surveys 4.3): a deadlock is a knot of the general resource graph.
"""

from collections import Counter
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

from .kept import Index
from .log import Mark, Tail

BLOCKED = ("wait", "finish")


class Wanted(NamedTuple):
    """What a rank waits for: a message of `channel` from rank `src`, or (src None) a collective of the members of a group."""

    src: int | None
    channel: int
    label: str
    group: str = ""
    members: tuple = ()


class Doing:
    """The last thing that a rank's log says it did, kept up to date with `follow`."""

    def __init__(self, directory: Path, rank: int):
        self.rank, self._tail = rank, Tail(Path(directory) / f"events-{rank}.jsonl", most=inf)  # it keeps none of them
        self.last = self.span = None
        self.sent, self.got = Counter(), Counter()  # (peer, channel) -> messages
        self.joined = Counter()  # group -> collectives that it has entered
        self.wants: Wanted | None = None
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
            self.got[self.wants.src, self.wants.channel] += 1
        self.wants = Wanted(*mark.about) if mark.what == "wait" else None
        if self.wants:
            self.joined[self.wants.group] += self.wants.src is None
        self.last = mark.what
        if mark.what == "enter":
            self.span = mark.about[0]

    def __str__(self) -> str:
        match self.last:
            case None:
                return f"rank {self.rank} had logged nothing yet"
            case "wait" if self.wants.src is None:
                return f"rank {self.rank} waits for all ranks in {self.wants.label}"
            case "wait":
                return f"rank {self.rank} waits for {self.wants.label or 'a message'} from rank {self.wants.src}"
            case "finish":
                return f"rank {self.rank} waits until what it sent is taken"
            case "done":
                return f"rank {self.rank} had finished"
            case "meet":
                return f"rank {self.rank} waits for the other ranks to begin"
            case "enter":
                return f"rank {self.rank} was in {self.span}"
        return f"rank {self.rank} had done {self.span}" if self.span else f"rank {self.rank} had done no step yet"

    @property
    def place(self) -> str:
        """Where it works, as a sentence goes on: " in 1F3", " after 1F3", or ""."""
        return f" {'in' if self.last == 'enter' else 'after'} {self.span}" if self.span else ""


def waited_for(doings: list[Doing], doing: Doing) -> list[int]:
    """The ranks without which this one cannot go on; none where it works, or where what it waits for is on its way."""
    if doing.last == "meet":
        return [other.rank for other in doings if other.last is None]
    if doing.last == "finish":
        return sorted({dst for (dst, _), _ in untaken(doings, doing)})
    if doing.last != "wait":
        return []
    src, channel, _, group, members = doing.wants
    if src is None:
        return [rank for rank in members if doings[rank].joined[group] < doing.joined[group]]
    return [] if doings[src].sent[doing.rank, channel] > doing.got[src, channel] else [src]


def untaken(doings: list[Doing], doing: Doing) -> list[tuple]:
    """((rank, channel), messages) of what a rank has sent and another has not taken."""
    left = ((way, count - doings[way[0]].got[doing.rank, way[1]]) for way, count in doing.sent.items())
    return [(way, count) for way, count in left if count > 0]


def knot(doings: list[Doing]) -> list[int]:
    """The ranks of a deadlock that is certain, each waiting for the next one: a cycle, or a chain to one that has finished.
    Empty where there is none. Follow the logs before."""
    if any(d.last not in (*BLOCKED, "done") for d in doings) or not any(d.last == "wait" for d in doings):
        return []
    edges = {d.rank: waited_for(doings, d) for d in doings if d.last in BLOCKED}
    if not all(edges.values()):
        return []
    path = [next(d.rank for d in doings if d.last == "wait")]
    while True:
        following = min(edges[path[-1]], key=lambda rank: (doings[rank].last != "done", rank))
        if following in path:
            return path[path.index(following):]
        path.append(following)
        if doings[following].last == "done":
            return path[-2:]


def said(doings: list[Doing], doing: Doing) -> str:
    """What a rank is at, and whom it waits for, where the logs of the others tell."""
    on = waited_for(doings, doing)
    if doing.last == "finish" and on:
        (_, channel), _ = untaken(doings, doing)[0]
        return f"rank {doing.rank} waits until rank {on[0]} takes {doing.labels[channel] or 'a message'}"
    if doing.last == "wait" and doing.wants.src is None and on:
        return f"rank {doing.rank} waits in {doing.wants.label} for {ranks(on)}"
    if doing.last == "meet" and on:
        return f"rank {doing.rank} waits for {ranks(on)} to begin"
    return str(doing)


def ranks(numbers) -> str:
    """ "rank 1", "ranks 0, 2 and 3"."""
    *most, last = map(str, numbers)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


class RankState(NamedTuple):
    """What a rank was at when its run failed.

    state   "waits", "works", "finished", "failed", or "not begun"
    what    what it waits for, where it works ("in 1F3", "after 1F3"), or how it failed
    on      the ranks that it waits for
    line    where in its program, if that is known: file:line, in function: source
    cycle   whether it is part of a deadlock's cycle
    """

    rank: Index
    state: Literal["waits", "works", "finished", "failed", "not begun"]
    what: str
    on: tuple[Index, ...]
    line: str
    cycle: bool


def state_of(doings: list[Doing], doing: Doing, line: str, in_knot: list[int]) -> RankState:
    """A rank that has not failed itself, as its log says."""
    match doing.last:
        case "wait":
            src, _, label, _, members = doing.wants
            others = waited_for(doings, doing) or ([rank for rank in members if rank != doing.rank] if src is None else [src])
            state = "waits", label or "a message", tuple(others)
        case "finish":
            state = "waits", "what it sent to be taken", tuple(waited_for(doings, doing))
        case "done":
            state = "finished", "", ()
        case "meet":
            state = "waits", "the other ranks to begin", tuple(waited_for(doings, doing))
        case None:
            state = "not begun", "", ()
        case _:
            state = "works", doing.place.strip(), ()
    return RankState(doing.rank, *state, line, doing.rank in in_knot)
