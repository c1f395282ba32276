"""Ranks that take turns in one process, so that an exercise on messages shows who waits for whom.

    turns     one rank runs until it waits; a seed chooses who is next, so a run repeats itself
    lanes     run only while no rank can: what nobody waited for is not there; but first of all
              while a rank is in `pause`
    round     of a message: one more than the latest that its sender had received

Cost: two thread switches a turn. An answer sees a Group.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import nullcontext
from threading import Semaphore, Thread

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from .trainings import Refused, refuse

MARK = "mark"  # in place of a lane's name


class Over(BaseException):
    """The run has ended while this rank waited."""


class Killed(BaseException):
    """The bench has killed a rank, and with it the run."""


class Ranks:
    """`size` ranks, and what was seen of their messages.

    received         bytes of each rank       rounds    the longest chain of messages
    changed          whether a tensor changed between its isend and its recv
    left, far        messages that nobody received, and those between ranks that are no neighbours
    seen             what each rank did, in its order: (what, where, bytes)
    peaks, kept      bytes that each rank's process grew by, where it has one of its own: at most,
                     and at the bench's last mark
    """

    def __init__(self, size: int, seed: float):
        self.size, self._draw = size, random.Random(seed)
        self.received, self._round = [0] * size, [0] * size
        self.rounds, self.changed, self.far, self._over = 0, False, 0, False
        self.seen: list[list[tuple]] = [[] for _ in range(size)]
        self._ways, self._meetings = defaultdict(deque), defaultdict(dict)
        self._through = defaultdict(int)  # ranks that have left a meeting
        self._alive, self._waits, self._back, self._error = [], {}, Semaphore(0), None
        self.peaks, self.kept = [0] * size, [0] * size
        self.axes: dict[tuple, Axis] = {}  # (name, ranks) -> what was seen among these

    @property
    def sent(self) -> list[int]:
        """Bytes of each rank's messages."""
        return [sum(size for what, _, size in own if what == "isend") for own in self.seen]

    @property
    def left(self) -> int:
        return sum(map(len, self._ways.values()))

    def run(self, program) -> list:
        """What program(group) returned on each rank. Refused where no rank can go on."""
        returned = [None] * self.size

        def play(group):
            returned[group.rank] = program(group)

        for rank in range(self.size):
            self._start(group := Group(self, rank), play, group)
        while self._error is None and not all(group.name for group in self._alive):
            ready = [
                group
                for group in self._alive
                if group not in self._waits or self._waits[group][2]()
            ]
            if ready:
                pauses = any(call == "pause" for call, *_ in self._waits.values())
                first = [group for group in ready if bool(group.name) == pauses]
                self._turn(self._draw.choice(first or ready))
            else:
                self._error = Refused(self._stuck())
        self._over = True
        for group in self._alive[:]:
            self._turn(group)
        if self._error is not None:
            raise self._error
        return returned

    def _start(self, group: "Group", body: Callable, *given) -> None:
        around = _get_current_dispatch_mode() or nullcontext()  # a lane's is that of its rank

        def play():
            group.go.acquire()
            try:
                if not self._over:
                    with around:
                        body(*given)
            except BaseException as error:  # noqa: B902  (an answer may raise anything)
                if self._error is None and not self._over:
                    self._error = error
            self._alive.remove(group)
            self._back.release()

        self._alive.append(group)
        Thread(target=play, daemon=True).start()

    def _turn(self, group: "Group") -> None:
        group.go.release()
        self._back.acquire()

    def until(self, group: "Group", call: str, peer: int, ready: Callable[[], bool]) -> None:
        """Let others run until it is ready."""
        if ready():
            return
        self._waits[group] = call, peer, ready
        self._back.release()
        group.go.acquire()
        if self._over:
            raise Over
        del self._waits[group]

    def _stuck(self) -> str:
        waits = {group.rank: wait for group, wait in self._waits.items() if not group.name}
        for group, (call, peer, _) in sorted(self._waits.items(), key=lambda each: each[0].rank):
            if "number" in call:
                return (
                    f"Rank {group.rank} waits in {call} for rank {peer}, which does not come "
                    "to it: let all ranks call the same, in the same order."
                )
        path, rank = [], min(waits)
        while rank not in path and rank in waits:
            path.append(rank)
            call, rank, _ = waits[rank]
        if rank not in waits:
            return (
                f"Rank {path[-1]} waits in {call} for rank {rank}, which has ended: "
                "each message needs one isend and one recv."
            )
        circle = " > ".join(map(str, (*path[path.index(rank) :], rank)))
        return (
            f"No rank can go on, each waits in {waits[rank][0]} for the next of the cycle "
            f"{circle}: let each send before it waits."
        )


class Axis(Ranks):
    """Some of the ranks, which take their turns among all."""

    def __init__(self, whole: Ranks, name: str, members: tuple[int, ...]):
        super().__init__(len(members), 0)
        self.whole, self.name, self.members, self.turns = whole, name, members, {}

    def until(self, group, call, peer, ready):
        call = f"{call} of {self.name}"
        self.whole.until(self.turns[group.rank], call, self.members[peer], ready)


class Group:
    """What a rank of the exercise talks through, by the rules of `runtime.Group`.

    isend posts a tensor and does not wait; recv waits for the next message of a rank and returns
    it in a new tensor; finish waits until all that this rank sent has been received. A lane's
    group has the lane's name.
    """

    def __init__(self, ranks: Ranks, rank: int, name: str = ""):
        self.rank, self.size, self.name, self._ranks = rank, ranks.size, name, ranks
        self.go, self._calls, self._lanes = Semaphore(0), 0, {}

    def isend(self, tensor, dst: int, name="", site="", tag=0) -> None:
        ranks, dst = self._ranks, self._peer(dst, "sends to")
        wire = copied(self._tensor(tensor, "sends"))
        ranks.seen[self.rank].append(("isend", self.name, wire.nbytes))
        ranks.far += (dst - self.rank) % self.size not in (1, self.size - 1)
        ranks.rounds = max(ranks.rounds, ranks._round[self.rank] + 1)
        ranks._ways[self.rank, dst, str(name), site, tag].append(
            (ranks._round[self.rank] + 1, wire, tensor, copied(tensor.detach()))
        )

    def recv(self, src: int, name="", site="", tag=0) -> torch.Tensor:
        ranks, src = self._ranks, self._peer(src, "receives from")
        way = ranks._ways[src, self.rank, str(name), site, tag]
        ranks.until(self, "recv", src, lambda: bool(way))
        number, wire, tensor, before = way.popleft()
        ranks._round[self.rank] = max(ranks._round[self.rank], number)
        ranks.received[self.rank] += wire.nbytes
        ranks.changed |= not torch.equal(tensor, before)
        return wire.clone()

    def finish(self) -> None:
        for (src, dst, *_), way in list(self._ranks._ways.items()):
            if src == self.rank:
                self._ranks.until(self, "finish", dst, lambda way=way: not way)

    def all_reduce(self, tensor, op: str = "sum", name="") -> torch.Tensor:
        """Replace the tensor on every rank by the sum, mean or max over the ranks; returns it."""
        every = self._together(f"all_reduce ({op})", self._tensor(tensor, "reduces"))
        tensor.detach().copy_(reduced(every, op))
        return tensor

    def reduce_scatter(self, tensor, op: str = "sum", name="", out=None) -> torch.Tensor:
        """This rank's part of what all_reduce would make: of torch.tensor_split along the first
        dimension, or of a list of one tensor a rank. `out`: where it goes."""
        parts = self._parts(tensor, "reduces")
        every = self._together(
            f"reduce_scatter ({op})", torch.cat([part.reshape(-1) for part in parts])
        )
        own = reduced(every, op).split([part.numel() for part in parts])[self.rank]
        own = own.view(parts[self.rank].shape).clone()
        return own if out is None else self._tensor(out, "reduces into").copy_(own)

    def all_gather(self, tensor, out=None, name=""):
        """Every rank's tensor, one after the other along the first dimension: in a new tensor
        where they have one shape, in the parts of `out`, which undoes reduce_scatter."""
        tensor, whole = self._tensor(tensor, "gathers"), out
        if out is None:
            out = tensor.new_empty(self.size, *tensor.shape)
            whole, out = out.flatten(0, 1) if tensor.dim() else out, list(out)
        parts = self._parts(out, "gathers into")
        (shape, dtype), own = (tensor.shape, tensor.dtype), parts[self.rank]
        refuse(
            (
                (shape, dtype) != (own.shape, own.dtype),
                f"Rank {self.rank} gathers {dtype} {[*shape]} into a part of {own.dtype} "
                f"{[*own.shape]}: give out= one tensor like it for each rank.",
            )
        )
        every = self._together("all_gather", tensor.reshape(-1), [part.numel() for part in parts])
        for rank, part in enumerate(parts):
            part.copy_(every[rank].view(part.shape))
        return whole

    def broadcast(self, tensor, src: int = 0, name="") -> torch.Tensor:
        """Replace the tensor on every rank by that of rank `src`; returns it."""
        every = self._together(f"broadcast of rank {src}", self._tensor(tensor, "sends"))
        tensor.detach().copy_(every[src])
        return tensor

    def lane(self, name: str = "comm") -> "Lane":
        """A lane beside this one: what is launched there runs while this rank goes on."""
        if name not in self._lanes:
            self._lanes[name] = Lane(self._ranks, Group(self._ranks, self.rank, name))
        return self._lanes[name]

    def among(self, name: str, members: tuple[int, ...]) -> "Group":
        """The group of these ranks, of which this is one."""
        axes, at = self._ranks.axes, members.index(self.rank)
        axis = axes.setdefault((name, members), Axis(self._ranks, name, members))
        axis.turns[at] = self
        return Group(axis, at)

    def pause(self) -> None:
        """Let others run once, as while this rank computes."""
        looks = iter((False,))
        self._ranks.until(self, "pause", self.rank, lambda: next(looks, True))

    def kill(self) -> None:
        """End the run of all ranks, as when its processes are killed."""
        raise Killed

    def mark(self, what: str) -> None:
        """Note what the bench is at, among what was sent."""
        self._ranks.seen[self.rank].append((what, MARK, 0))

    def _together(
        self, call: str, tensor: torch.Tensor, sizes: list[int] | None = None
    ) -> dict[int, torch.Tensor]:
        """What each rank brought to this call, the same one on all; `sizes`: of each, where they
        differ."""
        self._calls += 1
        ranks, call = self._ranks, f"{call} number {self._calls}{' of a lane' if self.name else ''}"
        whole = tensor.nbytes if sizes is None else sum(sizes) * tensor.itemsize
        ranks.seen[self.rank].append((call.split()[0], self.name, whole))
        meeting = ranks._meetings[key := (self.name, self._calls)]
        meeting[self.rank] = call, copied(tensor)
        ranks.until(
            self,
            call,
            next((r for r in range(self.size) if r not in meeting), 0),
            lambda: len(meeting) == self.size,
        )
        for rank, (other, brought) in sorted(meeting.items()):
            shape = tensor.shape if sizes is None else (sizes[rank],)
            refuse(
                (
                    (other, brought.shape, brought.dtype) != (call, shape, tensor.dtype),
                    f"Rank {self.rank} brings {tensor.numel()} numbers to {call}, and rank {rank} "
                    f"brings {brought.numel()} to {other}: let all bring the same.",
                )
            )
        ranks._through[key] += 1
        if ranks._through[key] == self.size:  # nobody asks again
            del ranks._meetings[key], ranks._through[key]
        return {rank: brought for rank, (_, brought) in meeting.items()}

    def _parts(self, tensor, does: str) -> list[torch.Tensor]:
        parts = tensor
        if not isinstance(tensor, (list, tuple)):
            parts = self._tensor(tensor, does).tensor_split(self.size)
        refuse(
            (
                len(parts) != self.size,
                f"Rank {self.rank} {does} {len(parts)} parts: give one for each of the "
                f"{self.size} ranks.",
            )
        )
        return [self._tensor(part, does) for part in parts]

    def _tensor(self, tensor, does: str) -> torch.Tensor:
        refuse(
            (
                not isinstance(tensor, torch.Tensor) or type(tensor).__module__ not in KNOWN,
                f"Rank {self.rank} {does} a {type(tensor).__name__}: give a tensor.",
            )
        )
        return tensor.detach()

    def _peer(self, peer, does: str) -> int:
        refuse(
            (
                peer not in range(self.size) or peer == self.rank,
                f"Rank {self.rank} {does} rank {peer}: "
                f"name another of the ranks 0 to {self.size - 1}.",
            )
        )
        return int(peer)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is on its way: no rank made it, so none is seen to have it."""
    with _disable_current_modes():
        return tensor.clone()


def reduced(every: dict[int, torch.Tensor], op: str) -> torch.Tensor:
    refuse(
        (
            op not in ("sum", "mean", "max"),
            f"There is no reduction {op!r}: choose sum, mean or max.",
        )
    )
    if op == "max":
        return torch.stack(list(every.values())).amax(0)
    total = sum(every[rank] for rank in range(len(every)))
    return total / len(every) if op == "mean" else total


KNOWN = ("torch", "torch.nn.parameter")  # modules of tensors that do not lie


class Lane:
    """First in, first out: `launch(function, name)` calls function(the lane's group) later."""

    def __init__(self, ranks: Ranks, group: Group):
        self.group, self._ranks, self._queue = group, ranks, deque()
        ranks._start(group, self._run)

    def launch(self, function: Callable, name: str = "") -> "Launched":
        self._ranks.seen[self.group.rank].append(("launch", self.group.name, 0))
        self._queue.append((launched := Launched(self._ranks, self.group), function))
        return launched

    def _run(self) -> None:
        while True:
            self._ranks.until(self.group, "launch", self.group.rank, lambda: bool(self._queue))
            launched, function = self._queue.popleft()
            launched.done = [function(self.group)]
            del launched, function  # nor keep what it returned


class Launched:
    def __init__(self, ranks: Ranks, group: Group):
        self._ranks, self._group, self.done = ranks, group, []

    def wait(self):
        """What the function returned, once it has."""
        self._ranks.seen[self._group.rank].append(("wait", "", 0))
        waiter = next(g for g in self._ranks._alive if g.rank == self._group.rank and not g.name)
        self._ranks.until(waiter, "wait", self._group.rank, lambda: bool(self.done))
        return self.done[0]
