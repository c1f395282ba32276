"""Who waits for whom: what each lane of each rank is at by its log, and the graph of waits between
lanes.

    lane -> lane    a message that it waits for comes from the lane of its name on another rank; or
                    that one has yet to take what it sent, or to enter the collective that it is in;
                    or another lane of its rank has yet to post what it waits for

Each log is written before a lane blocks. So when every lane waits, is idle or has finished, and
nothing that one waits for is on its way, none will ever go on: a deadlock that is certain, without
a time limit. Source: Holt 1972, Some Deadlock Properties of Computer Systems (ACM Computing Surveys
4.3): a deadlock is a knot of the general resource graph.
"""

from collections import Counter
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

from ...core.words import ranks
from ..record.kept import Index
from ..record.log import Mark, Tail
from ..talk.lanes import begin_of

BLOCKED = ("wait", "finish", "await")
ENDED = ("done", "failed")
TELLS = {  # a mark -> what of its lane it tells
    "enter": ("span",),
    "begin": ("thread",),
    "idle": ("signal",),
    "await": ("signal", "by"),
    "failed": ("failure",),
}
# the last mark -> what its lane is at, as a sentence goes on; state and what of a RankState
SAID = {
    None: ("had logged nothing yet", "not begun", ""),
    "enter": ("was in {0.span}", "works", "in {0.span}"),
    "await": ("waits for {0.signal} on lane {0.by}", "waits", "{0.signal} on lane {0.by}"),
    "finish": ("waits until what it sent is taken", "waits", "what it sent to be taken"),
    "meet": ("waits for the other ranks to begin", "waits", "the other ranks to begin"),
    "done": ("had finished", "finished", ""),
    "failed": ("had failed", "failed", "on lane {0.lane}"),
}


class Wanted(NamedTuple):
    """What a lane waits for: a message of `channel` from rank `src`, or (src None) a collective
    of the members of a group."""

    src: int | None
    channel: int
    label: str
    group: str
    members: tuple


class At:
    """The last thing that one lane of a rank did, by the rank's log."""

    def __init__(self, rank: int, lane: str):
        self.rank, self.lane = rank, lane
        self.last = self.span = self.thread = None
        self.wants: Wanted | None = None  # of a "wait"
        # of an "await": what, and the lane that will post it; of a "failed"
        self.signal = self.by = self.failure = ""

    @property
    def who(self) -> str:
        return f"rank {self.rank}" + ("" if self.lane == "compute" else f" (lane {self.lane})")

    def mark(self, mark: Mark) -> None:
        self.last = mark.what
        self.wants = Wanted(*mark.about) if mark.what == "wait" else None
        vars(self).update(zip(TELLS.get(mark.what, ()), mark.about))

    @property
    def said(self) -> tuple[str, str, str]:
        """What it is at, as SAID has it."""
        if self.last == "wait":
            src, label = self.wants.src, self.wants.label or "a message"
            whom = f"all ranks in {label}" if src is None else f"{label} from rank {src}"
            return f"waits for {whom}", "waits", label
        if self.last in SAID:
            return tuple(words.format(self) for words in SAID[self.last])
        return f"had done {self.span or 'no step yet'}", "works", self.place.strip()

    @property
    def place(self) -> str:
        """Where it works, as a sentence goes on: " in 1F3", " after 1F3", or ""."""
        return f" {'in' if self.last == 'enter' else 'after'} {self.span}" if self.span else ""


class Raised(NamedTuple):
    """What a rank's program raised, and where. A victim lost the connection to a rank that failed
    before it."""

    wall: int
    type: str
    message: str
    victim: bool
    place: tuple | None
    traceback: str


class Doing:
    """What the lanes of a rank are at by its log, kept up to date with `follow`."""

    def __init__(self, directory: Path, rank: int):
        self.rank = rank
        self._tail = Tail(
            Path(directory) / f"events-{rank}.jsonl", most=inf
        )  # it keeps none of them
        self.main = At(rank, "compute")
        self.lanes = {"compute": self.main}
        self.sent, self.got = Counter(), Counter()  # (lane, peer, channel) -> messages
        self.joined = Counter()  # group -> collectives that it has entered
        self.signals: set[str] = set()  # what its lanes have posted
        self.raised: Raised | None = None
        self.labels = {}  # channel -> what its messages are called

    def follow(self) -> None:
        for item in self._tail.new():
            if isinstance(item, Mark):
                self._mark(item)
            elif hasattr(item.measured, "version"):
                at = self.lane(item.measured.lane)
                at.span, at.last = item.measured.name, "span"

    def lane(self, name: str) -> At:
        return self.lanes.setdefault(name, At(self.rank, name))

    def _mark(self, mark: Mark) -> None:
        at = self.lane(mark.lane)
        match mark.what:
            case "send":
                dst, channel, self.labels[channel] = mark.about
                self.sent[mark.lane, dst, channel] += 1
                return
            case "signal":
                self.signals.add(mark.about[0])
                return
            case "raised":
                self.raised = Raised(mark.wall, *mark.about)
                return
            case "got" if at.wants:
                self.got[mark.lane, at.wants.src, at.wants.channel] += 1
            case "wait" if mark.about[0] is None:
                self.joined[mark.about[3]] += 1
        if at.last != "failed":
            at.mark(mark)

    def idle(self, at: At) -> bool:
        """Whether a lane has nothing to do before another one launches something."""
        return (
            at is not self.main
            and at.last in (None, "begin", "idle")
            and (at.signal or begin_of(at.lane, 0)) not in self.signals  # nothing was launched
        )

    def busy(self, name: str) -> At:
        """The lane of this name; where that is idle the rank's own."""
        return self.main if self.idle(at := self.lane(name)) else at

    @property
    def awake(self) -> list[At]:
        """Its lanes that are not idle; the program's own always."""
        return [at for at in self.lanes.values() if not self.idle(at)]


def waited_for(doings: list[Doing], at: At) -> list[At]:
    """The lanes without which this one cannot go on; none where it works, or where what it waits
    for is on its way."""
    own = doings[at.rank]
    if at.last == "meet":
        return [other.main for other in doings if other.main.last is None]
    if at.last == "await":
        return [] if at.signal in own.signals else [own.busy(at.by)]
    others = []
    if at.last == "finish":
        others = sorted({dst for dst, _ in untaken(doings, at)})
    elif at.last == "wait":
        src, channel, _, group, members = at.wants
        if src is None:
            others = [rank for rank in members if doings[rank].joined[group] < own.joined[group]]
        elif doings[src].sent[at.lane, at.rank, channel] <= own.got[at.lane, src, channel]:
            others = [src]
    return [doings[rank].busy(at.lane) for rank in others]


def untaken(doings: list[Doing], at: At) -> list[tuple[int, int]]:
    """(rank, channel) of what a lane has sent and that rank has not taken."""
    return [
        (dst, channel)
        for (lane, dst, channel), count in doings[at.rank].sent.items()
        if lane == at.lane and count > doings[dst].got[lane, at.rank, channel]
    ]


def knot(doings: list[Doing]) -> list[At]:
    """The lanes of a deadlock that is certain, each waiting for the next one: a cycle, or a
    chain to one that has ended. Empty where there is none. Follow the logs before."""
    lanes = [at for doing in doings for at in doing.awake]
    if any(at.last not in (*BLOCKED, *ENDED) for at in lanes):
        return []
    edges = {at: waited_for(doings, at) for at in lanes if at.last in BLOCKED}
    first = [at for last in ("wait", "await") for at in edges if at.last == last]
    launched = any(  # and not begun yet
        at not in edges and at.last not in ENDED for others in edges.values() for at in others
    )
    if not all(edges.values()) or not first or launched:
        return []
    path = first[:1]
    while True:
        following = min(edges[path[-1]], key=lambda at: (at.last not in ENDED, at.rank))
        if following in path:
            return path[path.index(following) :]
        path.append(following)
        if following.last in ENDED:
            return path[-2:]


def said(doings: list[Doing], at: At) -> str:
    """What a lane is at, and whom it waits for, where the logs of the others tell."""
    on = list(dict.fromkeys(other.rank for other in waited_for(doings, at)))
    if at.last == "finish" and on:
        _, channel = untaken(doings, at)[0]
        label = doings[at.rank].labels[channel] or "a message"
        return f"{at.who} waits until rank {on[0]} takes {label}"
    if at.last == "wait" and at.wants.src is None and on:
        return f"{at.who} waits in {at.wants.label} for {ranks(on)}"
    return (
        f"{at.who} waits for {ranks(on)} to begin"
        if at.last == "meet" and on
        else f"{at.who} {at.said[0]}"
    )


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


def state_of(doings: list[Doing], doing: Doing, line: str, in_knot: list[At]) -> RankState:
    """A rank that has not failed itself, as its log says: of its lanes the one that is part of a
    deadlock, or that the program's own waits for."""
    at = next((at for at in in_knot if at.rank == doing.rank), doing.main)
    if at.last == "await" and not doing.idle(by := doing.lane(at.by)) and by.last != "await":
        at = by
    on, (_, state, what) = [other.rank for other in waited_for(doings, at)], at.said
    if at.last == "wait" and not on:  # it is on its way
        members = at.wants.members if at.wants.src is None else (at.wants.src,)
        on = [rank for rank in members if rank != doing.rank]
    return RankState(
        doing.rank,
        state,
        what,
        on=tuple(dict.fromkeys(on)),
        line=line,
        cycle=any(each.rank == doing.rank for each in in_knot),
    )
