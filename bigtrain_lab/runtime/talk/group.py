"""A Group is what a technique talks through: ranks numbered 0 .. size-1, messages between them,
collectives of all.

`Group.of(None)` is torch's default group and adds nothing but shapes: no header, no log, no clock.
The runtime's groups have a recorder, which hears of each send, wait, launch and collective, so that
a technique holds no logging. Every send is posted and never waited for until `finish`: gloo's send
is a rendezvous, and two ranks that wait in send deadlock.

Under a modelled clock each message has its sender's virtual time in front:

    isend   issue, stamp = lane.send(link, bytes)            travel with the data
    recv    arrival = lane.receive(stamp, link, bytes)       logged as a Transfer from stamp to
                                                             arrival
    a backend's own collective: the issues are exchanged, and it ends for all at the latest issue +
    its cost; so is what
            each rank calls, and a mismatch is a sentence

The bytes that are charged are those of the tensor; for a message that the Cost prices at nothing
they are 0, as in the prediction. The measured Transfer says the tensor's bytes always. A collective
is a Span of its lane and, where it moves bytes, the Transfer of a ring: what a rank gets from the
one before it; a backend may go other ways. With the clock off there is no header, hence no sender's
time: a measured Transfer then begins when the receiver begins to wait.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, partial
from hashlib import blake2b
from math import isfinite

import torch
import torch.distributed as dist

from ...core import Impossible, ranks, refuse
from ...core.impossible import refuse_unknown
from ...order.plan import INSIDE, Message, Together
from ..failure import frames
from ..memory.capacity import OutOfMemory
from . import exchange
from .lanes import LaneFailed, LaneRunner
from .message import HEADER, Outbox, Shape, as_bytes, channel, pack, unpack
from .unrecorded import UNRECORDED

HOST = torch.device("cpu")
OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}

LOST = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket closed",
    "timed out",
)


class PeerLost(RuntimeError):
    """The connection to another rank broke: that rank failed first."""


def is_lost(error: BaseException | None) -> bool:
    """Whether an error says that a connection broke: a PeerLost, or what gloo's transport says of
    it."""
    text = str(error).lower()
    return (
        isinstance(error, PeerLost)
        or isinstance(error, RuntimeError)
        and "gloo" in text
        and any(words in text for words in LOST)
    )


class Handle:
    """A receive that was posted; `wait()` returns the tensor. `arrive()` returns once the
    message is in hand, without taking it: the time at which it was issued, None without a
    modelled clock. Each happens once, whoever asks again."""

    def __init__(self, arrive: Callable[[], int | None] | None, take: Callable):
        self.arrive, self._take = cache(arrive or (lambda: None)), cache(take)

    def wait(self) -> torch.Tensor:
        self.arrive()
        return self._take()


class _Receive:
    """One message that is wanted: posted once its site's shape is known, and never where `like` is
    another shape."""

    __slots__ = "src", "name", "site", "way", "like", "buffer", "shape", "wire", "work"

    def __init__(self, src: int, name, site: str, way: int, like, buffer: torch.Tensor | None):
        self.src, self.name, self.site, self.way, self.buffer = src, name, site, way, buffer
        self.like = None if like is None else Shape.of(like)
        self.shape = None  # of the message, once it is posted


class Group:
    """Ranks that talk. `name` names a message (an Action, a Message, or text), `site` the place
    in the program it comes from; both sides say the same. Messages of one (site, name, tag) are
    taken in the order they were sent, others in any order. Shapes: the first message of a site
    announces its dtype and shape, later ones must have the same. Messages go over the host;
    those that are taken in no buffer arrive on `device`."""

    device, axis, name = HOST, "", "compute"  # name: its lane
    recorder, agreements, _kept, _began, _pg, _gloo = UNRECORDED, 0, None, 0, None, True

    def __init__(
        self,
        process_group=None,
        device: torch.device = HOST,
        axis: str = "",
        name: str = "compute",
        recorder=UNRECORDED,
    ):
        refuse(
            (
                process_group is None and not dist.is_initialized(),
                "There is no process group yet: call torch.distributed.init_process_group(...)"
                " first, or use launch().",
            )
        )
        self.device, self.axis, self.name, self.recorder = device, axis, name, recorder
        self._pg = process_group if process_group is not None else dist.group.WORLD
        self._gloo = dist.get_backend(self._pg) == "gloo"
        self.members = tuple(dist.get_process_group_ranks(self._pg))  # the job's, by rank of this
        self.rank, self.size = dist.get_rank(self._pg), len(self.members)
        self._outbox = Outbox()
        self._said: dict[tuple, Shape] = {}  # (peer, site) -> what was announced to the peer
        self._heard: dict[tuple, Shape] = {}  # (peer, site) -> what the peer announced
        # what it will announce: the work, the code of a shape, and the receives to post then
        self._coming: dict[tuple, tuple[dist.Work, torch.Tensor, list[_Receive]]] = {}
        self._wanted: set[_Receive] = set()  # posted: what never comes keeps its buffer
        self.lanes: dict[str, LaneRunner] = {}

    @classmethod
    def of(cls, group=None) -> "Group":
        """A Group as it is; a ProcessGroup, or None for torch's default one, as a plain Group."""
        return group if isinstance(group, Group) else Group(group)

    def lane(self, name: str = "") -> LaneRunner:
        """A lane beside this one: a thread with a group of its own over the same ranks. All of
        them ask for it, in one order."""
        name = name or ("comm:" + self.axis).rstrip(":")
        if name not in self.lanes:
            self.lanes[name] = LaneRunner(self._again(name), name)
        return self.lanes[name]

    def anew(self) -> "Group":
        """The same ranks and lane, whose sites have announced no shape yet. All ranks ask for it,
        in one order."""
        other = copy(self)
        other._said, other._heard, other._coming = {}, {}, {}
        return other

    def unrecorded(self) -> "Group":
        """The same ranks, for what is no part of a training: no trace tells of it."""
        return Group(self._pg, self.device) if self.recorder.records else self

    # -- messages ----------------------------------------------------------------------------------

    def isend(
        self,
        tensor: torch.Tensor,
        dst: int,
        name="",
        site: str = "",
        tag: int = 0,
        agreed: bool = False,
    ) -> None:
        """Post a message to rank `dst` of the group; do not change the tensor before `finish`.
        `agreed`: the receiver knows its shape, so that none is announced; it posts its receive so.

        Impossible, naming the ranks, where the site's messages had another shape before.
        """
        site, way = self._way(dst, name, site, tag)
        with self.recorder.aside(), self._watching(dst, name):
            wire = self._wire(tensor, dst, name, way)  # the log tells of it first
            if not agreed:
                self._announce(tensor, dst, site)
            self._outbox.add(dist.isend(wire, group=self._pg, group_dst=dst, tag=way), wire)

    def recv(self, src: int, name="", site: str = "", tag: int = 0, like=None) -> torch.Tensor:
        """The next message from rank `src` of the group, in a new tensor.

        `like`: a tensor, or (dtype, shape), that it must look like, else Impossible.
        """
        return self._posted(src, name, site, tag, like).wait()

    def irecv(
        self,
        buffer: torch.Tensor | None,
        src: int,
        name="",
        site: str = "",
        tag: int = 0,
        agreed: bool = False,
    ) -> Handle:
        """Post a receive into `buffer`, or into a new tensor where it is None; `.wait()` returns
        it, filled.

        Impossible, in wait, where the message is unlike the buffer.
        """
        return self._posted(src, name, site, tag, buffer, buffer, agreed)

    def finish(self) -> None:
        """Return when every message that was posted has been taken."""
        self.recorder.mark("finish", lane=self.name)
        with self._watching(None, ""):
            self._outbox.finish()
        self.recorder.mark("got", -1, lane=self.name)

    # -- collectives -------------------------------------------------------------------------------

    def all_reduce(
        self, tensor: torch.Tensor, op: str = "sum", name: str = "all_reduce"
    ) -> torch.Tensor:
        """Replace the tensor on every rank by the sum, mean, max, min or product over the ranks;
        returns it."""
        if self.size > 1:
            with self.recorder.aside():
                self._note_not_finite(tensor, name)
        call = f"all_reduce ({op}) of {Shape.of(tensor)}"
        with self._together(name, "all_reduce", tensor.nbytes, call):
            reduction = operation(op)
            if self.size > 1:  # of one rank torch's thread would hold the tensor a moment longer
                dist.all_reduce(self._lent(tensor), reduction, group=self._pg)
        return tensor.div_(self.size) if op == "mean" else tensor

    def reduce_scatter(
        self,
        tensor: torch.Tensor | Sequence[torch.Tensor],
        op: str = "sum",
        name: str = "reduce_scatter",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """This rank's part of what `all_reduce` would make. The parts are those of
        torch.tensor_split along the first dimension (the first ones are a row longer where it
        does not divide), or a list of tensors, one a rank, of any shapes. `out`: where it goes,
        which may be this rank's part itself."""
        parts = self._parts(tensor, "reduce_scatter")
        own = parts[self.rank].new_empty(parts[self.rank].shape) if out is None else out
        size, call = sum(part.nbytes for part in parts), f"reduce_scatter ({op}) of {of(parts)}"
        with self.recorder.aside():
            reduced, *rows = (
                each.detach().reshape(-1).to(self._room_on(each)) for each in (own, *parts)
            )
            with self._together(name, "reduce_scatter", size, call):
                self._scatter(rows, reduced, op)
            if reduced.data_ptr() != own.data_ptr():
                own.copy_(reduced.view(own.shape))
        return own.div_(self.size) if op == "mean" else own

    def all_gather(
        self,
        tensor: torch.Tensor,
        out: torch.Tensor | Sequence[torch.Tensor] | None = None,
        name: str = "all_gather",
    ):
        """Every rank's tensor, one after the other along the first dimension: in a new tensor where
        they have one shape, in the parts of `out` (of a tensor those of torch.tensor_split, which
        undoes `reduce_scatter`; or a list of one tensor a rank). Returns `out`.

        Impossible where this rank's tensor is not of its part's shape.
        """
        if out is None:
            stacked = tensor.detach().new_empty((self.size, *tensor.shape))
            out, parts = stacked.flatten(0, 1) if tensor.dim() else stacked, stacked.unbind()
        else:
            parts = self._parts(out, "all_gather")
        if Shape.of(tensor) != Shape.of(own := parts[self.rank]):
            raise Impossible(
                f"Rank {self.world_rank(self.rank)} gathers {Shape.of(tensor)} into a part "
                f"that is {Shape.of(own)}: give out= one tensor of its shape for each rank."
            )
        size = sum(part.nbytes for part in parts)
        with self.recorder.aside(), torch.no_grad():
            mine, *rows = (as_bytes(each).to(self._room_on(each)) for each in (tensor, *parts))
            with self._together(name, "all_gather", size, f"all_gather of {of(parts)}"):
                self._gather(rows, mine)
            for part, row in zip(parts, rows):
                if row.data_ptr() != part.data_ptr():
                    part.copy_(row.view(part.dtype).view(part.shape))
        return out

    def broadcast(
        self, tensor: torch.Tensor, src: int = 0, name: str = "broadcast"
    ) -> torch.Tensor:
        """Replace the tensor on every rank by that of rank `src`; returns it."""
        call = f"broadcast from rank {src} of {Shape.of(tensor)}"
        with self._together(name, "broadcast", tensor.nbytes, call, src):
            if self.size > 1:
                dist.broadcast(self._lent(tensor), group_src=src, group=self._pg)
        return tensor

    def barrier(self, name: str = "barrier") -> None:
        """Return when every rank has come here."""
        with self._together(name, "barrier", 0, "barrier"):
            if self.size > 1:
                dist.barrier(group=self._pg)

    def differing(self, text: str, name: str = "an agreement") -> list[str]:
        """[] where every rank gives the same text, else each rank's, on every rank: what they must
        agree on before they communicate. It takes no modelled time. `name`: of this call, for a
        rank that waits in it."""
        if self.size == 1:
            return []
        with self._waiting(name), self.recorder.aside():
            return Agreement(self, text).wait()[1]

    def agreement(self, text: str, name: str = "") -> "Agreement":
        """Like `differing`, beside the first messages of what is to be agreed on."""
        return Agreement(self, text, name)

    def room(self, size_bytes: int, device: torch.device = HOST) -> torch.Tensor:
        """Bytes to receive into, the same ones in each call: fresh pages cost as much as a copy."""
        kept = self._kept
        if kept is None or kept.device != device or len(kept) < size_bytes:
            with self.recorder.aside():
                self._kept = kept = torch.empty(size_bytes, dtype=torch.uint8, device=device)
        return kept[:size_bytes]

    def _gather(self, rows: list[torch.Tensor], own: torch.Tensor) -> None:
        rows, own = [self._lent(row) for row in rows], self._lent(own)
        if own.device == HOST or self._gloo:
            for work in exchange.gathering(rows, own, self.rank, self._pg):
                work.wait()
        else:
            dist.all_gather(rows, own, group=self._pg)

    def _scatter(self, rows: list[torch.Tensor], own: torch.Tensor, op: str) -> None:
        reduction, rows, own = operation(op), [self._lent(row) for row in rows], self._lent(own)
        if own.device == HOST or self._gloo:
            exchange.scatter(rows, own, op, self.rank, self._pg, self.room)
        else:
            dist.reduce_scatter(own, rows, reduction, group=self._pg)

    def _parts(self, tensors, what: str) -> Sequence[torch.Tensor]:
        """One tensor a rank. Impossible where a list has not as many, or a tensor no dimension
        to be cut along."""
        if isinstance(tensors, torch.Tensor):
            refuse(
                (
                    not tensors.dim(),
                    f"{what} cannot cut a single number into {self.size} parts: "
                    "give it a tensor with a first dimension.",
                )
            )
            return tensors.tensor_split(self.size)
        refuse(
            (
                len(tensors) != self.size,
                f"{what} got {len(tensors)} tensors for {self.size} ranks: give one a rank.",
            )
        )
        return tensors

    def _room_on(self, tensor: torch.Tensor) -> torch.device:
        """Where the backend cuts and gathers such a tensor: gloo on the host alone."""
        return HOST if self._gloo and self.size > 1 else tensor.device

    # -- this lane and others ----------------------------------------------------------------------

    def span(self, step, version: int | None = None, beside: bool = False):
        """Around the work of a step (a tuple of actions) on weights of this version; `beside`:
        while another lane may be busy."""
        return self.recorder.span(step, version, self.name, beside)

    def enter(self) -> None:
        """The thread that asks is this group's lane from now on."""
        self.recorder.enter(self.name)
        self.recorder.mark("begin", threading.get_ident())

    def post(self, signal: str) -> int | None:
        """Tell the rank's other lanes that this thread has come here; returns its lane's time,
        for `after`; None without a modelled clock."""
        self.recorder.jitter()
        self.recorder.mark("signal", signal, now=False)
        return self.recorder.issue()

    def issue(self, signal: str, then: Callable[[int | None], None]) -> None:
        """Post the signal and call `then` with its time: at once, or when an action has ended
        whose end is not known yet."""

        def now():
            then(self.post(signal))

        if not self.recorder.later(now):
            now()

    def after(
        self, signal: str, by: str, arrived: Callable[[], int | None], idle: bool = False
    ) -> None:
        """Wait in `arrived` for the time at which lane `by` posts a signal; the lane of the
        thread that asks goes on no earlier. `idle`: there is nothing to do before."""
        self.recorder.jitter()
        self.recorder.mark("idle" if idle else "await", signal, *([] if idle else [by]))
        until = arrived()
        self.recorder.mark("got", -1, now=False)
        self.recorder.clock.wait(self.recorder.lane, until)

    def reaches(self, dst: int) -> int | None:
        """The earliest time at which the message that was sent last arrives at rank `dst`; None
        without a modelled clock."""
        clock = self.recorder.clock
        if clock.modelled:
            return clock.lane(self.name).outgoing + self._link(self.rank, dst).alpha

    def failed(self, error: BaseException, lane: str, name: str) -> BaseException:
        """Note that a function on this lane failed, for nobody may ask; returns what to raise
        where somebody does. A lost connection and a lack of memory name their rank themselves."""
        if is_lost(error):
            return error
        where = f"Rank {self.world_rank(self.rank)} failed on lane {lane}" + (
            name and f", in {name}"
        )
        sentence = f"{where}: {type(error).__name__}: {error}"
        place, told = frames.of_error(error), LaneFailed(sentence)
        self.recorder.mark("failed", sentence + (f"\n  at {place}" if place else ""))
        told.__cause__ = error
        return error if isinstance(error, OutOfMemory) else told

    def world_rank(self, rank: int) -> int:
        """The rank in the whole job of a rank of this group: the number to name in a sentence."""
        return self.members[rank]

    def _again(self, lane: str) -> "Group":
        """Another group of the same ranks, for a lane."""
        self.recorder.refuse_taken(lane)
        return Group(again(self._pg, lane), self.device, name=lane, recorder=self.recorder)

    # -- a message's way ---------------------------------------------------------------------------

    def _link(self, src: int, dst: int):
        return self.recorder.clock.cost.link(self.members[src], self.members[dst], self.name)

    def _charged(self, message: Message, size_bytes: int) -> int:
        return size_bytes if self.recorder.clock.cost.message_bytes(message) else 0

    def _wire(self, tensor: torch.Tensor, dst: int, name, way: int) -> torch.Tensor:
        """What the transport sends of a tensor. A recorded one is copied, clock or none: when it
        goes is the transport's affair."""
        recorder, clock = self.recorder, self.recorder.clock
        recorder.jitter()
        recorder.refuse_other_lane(self.name, name)
        recorder.mark("send", self.members[dst], way, str(name), lane=self.name, now=False)
        self._note_not_finite(tensor, name)
        if not clock.modelled:
            sent = tensor.detach().clone() if recorder.records else tensor.detach()
            return sent.contiguous().to(HOST)
        charged = self._charged(message(name, tensor.nbytes), tensor.nbytes)
        issue, stamp = clock.lane(self.name).send(self._link(self.rank, dst), charged)
        return pack(tensor, issue, stamp, clock.wall())

    def _note_not_finite(self, tensor: torch.Tensor, name) -> None:
        self.recorder.look_at(
            "sent", str(name) or "a message", self.name, partial(is_finite, tensor)
        )

    def _room(self, shape: Shape, buffer: torch.Tensor | None) -> torch.Tensor:
        """What a message is received into: the buffer itself where the transport can write
        there."""
        if self.recorder.clock.modelled:
            return torch.empty(HEADER.size + shape.nbytes, dtype=torch.uint8)
        fits = buffer is not None and buffer.device == HOST and buffer.is_contiguous()
        return buffer if fits else shape.empty()

    def _take(self, receive: _Receive) -> torch.Tensor:
        """The message of a receive that has arrived."""
        src, recorder, clock = receive.src, self.recorder, self.recorder.clock
        wall_start, wall_end, start, done = self._began, clock.wall(), None, None
        tensor, size = receive.wire, receive.shape.nbytes
        sent, charged = message(receive.name, size), size
        with recorder.aside():
            if clock.modelled:
                tensor, _, start, wall_sent = unpack(receive.wire, receive.shape)
                wall_start = min(wall_sent, wall_end)  # another machine's is known to its error
                charged = self._charged(sent, size)
                done = clock.lane(self.name).receive(start, self._link(src, self.rank), charged)
                receive.wire = None  # the handle lives on
            where = recorder.rank, self.name, sent.kind, str(receive.name)
            told = size, *where, start, done, self.members[src], charged
            recorder.write("transfer", wall_start, wall_end, *told)
            if receive.buffer is None:
                return tensor.to(self.device)
            with torch.no_grad():
                return tensor if tensor is receive.buffer else receive.buffer.copy_(tensor)

    @contextmanager
    def _waiting(self, name, src: int | None = None, way: int = 0):
        """Around a call that may block: for a message of rank `src`, or (None) for all ranks."""
        self.recorder.refuse_other_lane(self.name, name)
        self.recorder.jitter()
        self._began = self.recorder.clock.wall()
        self._wants(name, src, way)
        with self._watching(src, name):
            yield
        self.recorder.mark("got", way, lane=self.name)

    def _wants(self, name, src: int | None, way: int) -> None:
        whom = None if src is None else self.members[src]
        all_of = (self._pg.group_name, self.members) if src is None else ("", ())
        self.recorder.mark("wait", whom, way, name, *all_of, lane=self.name)

    # -- a collective's ----------------------------------------------------------------------------

    def _lent(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the backend is handed in place of a tensor: the same memory. Torch's thread lets go
        of what it was handed a moment after the collective has ended, and a ledger would count that
        moment: so of the host's memory this is a tensor that owns nothing."""
        if tensor.device != HOST or not tensor.nbytes or not tensor.is_contiguous():
            return tensor
        memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
        return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)

    @contextmanager
    def _together(self, name, kind: str, size_bytes: int, call: str, src: int | None = None):
        """Around a collective of the backend. `call`: what all ranks must call alike."""
        recorder, clock, lane = self.recorder, self.recorder.clock, self.name
        recorder.refuse_other_lane(lane, name)
        if self.size == 1 or not recorder.records:
            with self._watching(None, name):
                yield
            return
        call = call if name == kind else f"{name}, {call}"
        beside = f"comm:{self.axis}"
        if self.axis in INSIDE and (inside := recorder.call(beside, kind, size_bytes, name)):
            lane, name = beside, inside
        root = src or 0  # of a collective without one all ranks are alike
        members = (self.members[root], *self.members[:root], *self.members[root + 1 :])
        with self._waiting(name):
            start, end, wall_start = clock.now(lane), None, self._began
            with recorder.aside():
                latest = self._agree(call, start or 0)
                wall_latest = clock.wall()
                yield
            if clock.modelled:
                end = latest + clock.cost.collective(kind, size_bytes, members, lane)
                clock.lane(lane).now = end
                clock.wait(self.name, end)
        wall_end, where = clock.wall(), (recorder.rank, lane, kind, name)
        recorder.note("span", wall_start, wall_end, *where, start, end, None)
        if arriving := Together(name, kind, size_bytes, members).arriving(recorder.rank):
            other, size = arriving
            times = (latest, end) if clock.modelled else (None, None)
            recorder.note("transfer", wall_latest, wall_end, size, *where, *times, other, size)
        recorder.write()

    def _agree(self, call: str, start: int) -> int:
        """The latest start of all. Impossible, on every rank, where they are about to call
        different collectives: the backend would hang, or add up what does not belong together."""
        latest, calls = Agreement(self, call, start=start).wait()
        if calls:
            told = "; ".join(
                f"{ranks(self.members[i] for i in range(self.size) if calls[i] == one)} {one}"
                for one in dict.fromkeys(calls)
            )
            raise Impossible(
                f"The ranks call different collectives at one time: {told}. Let all call the same"
                " ones in the same order."
            )
        return latest

    # -- sites -------------------------------------------------------------------------------------

    def _way(self, peer: int, name, site: str, tag: int) -> tuple[str, int]:
        if not 0 <= peer < self.size or peer == self.rank:
            raise Impossible(
                f"Rank {self.rank} cannot exchange {name or 'a message'} with rank {peer}: "
                f"name another of the ranks 0 to {self.size - 1}."
            )
        if not site and not isinstance(name, str):
            site = f"{name.stage}{name.kind}{name.bytes or ''}"
        return site, channel(site, str(name), tag)

    def _posted(
        self, src: int, name, site: str, tag: int, like, buffer=None, agreed: bool = False
    ) -> Handle:
        site, way = self._way(src, name, site, tag)
        receive = _Receive(src, name, site, way, like, buffer)
        with self.recorder.aside(), self._watching(src, name):
            try:
                self._expect(receive, agreed)
            except RuntimeError:  # its rank may have ended: the log tells what is wanted of it
                self._wants(str(name) or site, src, way)
                raise
        return Handle(partial(self._arrive, receive), partial(self._take, receive))

    def _announce(self, tensor, dst: int, site: str) -> None:
        shape = Shape.of(tensor)
        said = self._said.get((dst, site))
        if said is None:
            code = shape.encode()
            self._outbox.add(
                dist.isend(code, group=self._pg, group_dst=dst, tag=channel(site, "shape", -1)),
                code,
            )
            self._said[dst, site] = shape
        elif said != shape:
            raise Impossible(
                f"Rank {self.world_rank(self.rank)} sends rank {self.world_rank(dst)} {shape} where"
                f" it sent {said} before{f' (site {site})' if site else ''}: let all micro-batches"
                " of a pipeline have one shape, as by padding, or give messages of another shape a"
                " site= of their own."
            )

    def _expect(self, receive: _Receive, agreed: bool) -> None:
        """Post a receive now, or when its site's announcement is in: gloo ends a process whose
        buffer is too small."""
        src, site = place = receive.src, receive.site
        if shape := receive.like if agreed else self._heard.get(place):
            self._post(receive, shape)
            return
        if place not in self._coming:  # it is sent once, whoever waits for it
            code = Shape((torch.int64, (16,))).empty()
            work = dist.irecv(code, group=self._pg, group_src=src, tag=channel(site, "shape", -1))
            self._coming[place] = work, code, []
        self._coming[place][2].append(receive)

    def _post(self, receive: _Receive, shape: Shape) -> None:
        if receive.like in (None, shape):
            self._wanted.add(receive)
            receive.shape, receive.wire = shape, self._room(shape, receive.buffer)
            receive.work = dist.irecv(
                receive.wire, group=self._pg, group_src=receive.src, tag=receive.way
            )

    def _arrive(self, receive: _Receive) -> int | None:
        """Wait until the receive's wire is filled; returns when the message was issued, None
        without a modelled clock. Impossible where it is unlike what was expected."""
        place, what = (receive.src, receive.site), str(receive.name) or receive.site
        with self.recorder.aside(), self._waiting(what, receive.src, receive.way):
            if place in self._coming:
                work, code, receives = self._coming[place]
                work.wait()
                self._heard[place] = Shape.decode(code)
                del self._coming[place]
                for each in receives:
                    self._post(each, self._heard[place])
            if receive.shape is None:
                raise Impossible(
                    f"Rank {self.world_rank(self.rank)} expects {receive.like} from rank"
                    f" {self.world_rank(receive.src)}, which sends"
                    f" {self._heard[place]}{f' ({what})' if what else ''}: make the"
                    " two ranks agree on the shape."
                )
            receive.work.wait()
        self._wanted.discard(receive)
        if self.recorder.clock.modelled:
            return HEADER.unpack_from(receive.wire.numpy(), 0)[0]

    @contextmanager
    def _watching(self, peer: int | None, name):
        """Turns the error of a broken connection into the sentence that a peer is gone: its
        failure came first."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, PeerLost) or not is_lost(error):
                raise
            who = "another rank" if peer is None else f"rank {self.world_rank(peer)}"
            raise PeerLost(
                f"Rank {self.world_rank(self.rank)} lost the connection to {who} "
                f"at {name or 'a message'}: {str(error).splitlines()[0][:200]}"
            ) from error


class Alone(Group):
    """A group of one rank, without a process group: it has nobody to talk to, and a collective
    changes nothing."""

    def __init__(self, device: torch.device = HOST, span: Callable | None = None):
        self.rank, self.size, self.device, self.lanes, self._outbox = 0, 1, device, {}, Outbox()
        self.span = span or super().span

    def _again(self, lane):
        return Alone(self.device)

    def world_rank(self, rank):
        return rank


class Agreement:
    """What each rank is about to do, in words: a hash of them is compared by all, beside the first
    messages of what is to be done. It takes no modelled time. Who says another thing than the rest
    differs in the hash or in its negative from the highest of all. Nothing that came from another
    rank is unpickled."""

    def __init__(self, group: Group, text: str, name: str = "", start: int = 0):
        self.group, self.name, self.text = group, name, text.encode()
        group.agreements += 1
        self.site = f"{group.agreements} {text}"  # of messages of those who say the same
        code = int.from_bytes(blake2b(self.text, digest_size=7).digest())
        gloo = "gloo" in dist.get_backend(group._pg)
        with group.recorder.aside():
            self.found = torch.tensor((start, code, -code), device="cpu" if gloo else "cuda")
            self.work = (
                exchange.Highest(self.found, group.rank, group.size, group._pg)
                if gloo
                else dist.all_reduce(self.found, dist.ReduceOp.MAX, group._pg, True)
            )

    def wait(self) -> tuple[int, list[str]]:
        """(the latest start of all, [] where every rank says the same, else each rank's text)."""
        self.work.wait()
        latest, highest, lowest = self.found.tolist()
        if highest == -lowest:
            return latest, []
        own = torch.tensor([*self.text], dtype=torch.uint8, device=self.found.device)
        length, lengths = (
            self.found.new_tensor([len(own)]),
            self.found.new_empty(self.group.size, 1),
        )
        self.group._gather(lengths.unbind(), length)
        rows = [own.new_empty(length) for length in lengths.flatten().tolist()]
        self.group._gather(rows, own)
        return latest, [bytes(row.tolist()).decode() for row in rows]

    def differing(self) -> list[str]:
        """Like Group.differing, and nobody waits for what was sent beside, where they differ."""
        with self.group._waiting(self.name), self.group.recorder.aside():
            texts = self.wait()[1]
        if texts:
            self.group._outbox.forget()
        return texts


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite. One pass: a finite sum tells it of all; one that is
    not may have overflowed."""
    if not tensor.is_floating_point() or tensor.itemsize < 2:  # float8 adds up on no CPU
        return True
    tensor = tensor.detach().as_subclass(torch.Tensor)
    return isfinite(tensor.sum()) or bool(tensor.isfinite().all())


def message(name, size_bytes: int):
    """What a name names: an Action or a Message is itself, text a message of this size."""
    return Message(name, bytes=size_bytes) if isinstance(name, str) else name


def operation(op: str) -> dist.ReduceOp:
    """torch's word for a reduction; of a mean its sum. Impossible where there is none."""
    refuse_unknown("reduction", op, (*OPERATIONS, "mean"))
    return OPERATIONS["sum" if op == "mean" else op]


def of(parts: Sequence[torch.Tensor]) -> str:
    """What is cut or gathered, in words."""
    return f"{len(parts)} parts, " + " and ".join(
        dict.fromkeys(str(Shape.of(part)) for part in parts)
    )


def again(process_group, lane: str) -> dist.ProcessGroup:
    """A new process group of the ranks of this one. torch names one that only its members make by
    how many groups a process has: for all ranks, of whom some may have more, it is made by all."""
    members = dist.get_process_group_ranks(process_group)
    return dist.new_group(
        members,
        use_local_synchronization=len(members) < dist.get_world_size(),
        group_desc=lane,
    )
