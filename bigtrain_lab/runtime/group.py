"""A Group is what a technique talks through: ranks numbered 0 .. size-1, messages between them, collectives of all.

`Group.of(None)` is torch's default group and adds nothing but shapes: no header, no log, no clock. The runtime hands a
RecordingGroup (recording.py) with the same methods, so that a technique holds no logging. Every send is
posted and never waited for until `finish`: gloo's send is a rendezvous, and two ranks that wait in send deadlock.
"""

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..core import Impossible
from .message import Outbox, Shape, channel

HOST = torch.device("cpu")
OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "product": dist.ReduceOp.PRODUCT}


LOST = ("connection closed", "connection reset", "connection refused", "broken pipe", "socket closed", "timed out")


class PeerLost(RuntimeError):
    """The connection to another rank broke: that rank failed first."""


def is_lost(error: BaseException | None) -> bool:
    """Whether an error says that a connection broke: a PeerLost, or what gloo's transport says of it."""
    text = str(error).lower()
    return isinstance(error, PeerLost) or isinstance(error, RuntimeError) and "gloo" in text and any(words in text for words in LOST)


class Handle:
    """A receive that was posted; `wait()` returns the tensor."""

    def __init__(self, wait):
        self._wait, self._tensor = wait, None

    def wait(self) -> torch.Tensor:
        if self._wait:
            self._tensor, self._wait = self._wait(), None
        return self._tensor


class _Receive:
    """One message that is wanted: posted once its site's shape is known, and never where `like` is another shape."""

    __slots__ = "way", "like", "wire", "work"

    def __init__(self, way: int, like):
        self.way, self.like = way, None if like is None else Shape.of(like)


class _Announcement(NamedTuple):
    """The shape of a site's messages, on its way, and the receives that it will let be posted, in their order."""

    work: dist.Work
    code: torch.Tensor
    receives: list[_Receive]


class Group:
    """Ranks that talk. `name` names a message (an Action, or text), `site` the place in the program it comes from; both
    sides say the same. Messages of one (site, name, tag) are taken in the order they were sent, others in any order.
    Shapes: the first message of a site announces its dtype and shape, later ones must have the same.
    Messages go over the host; those that are taken in no buffer arrive on `device`."""

    device = HOST

    def __init__(self, process_group=None):
        if process_group is None and not dist.is_initialized():
            raise Impossible("There is no process group yet: call torch.distributed.init_process_group(...) first, or use launch().")
        self._pg = process_group if process_group is not None else dist.group.WORLD
        self.rank, self.size = dist.get_rank(self._pg), dist.get_world_size(self._pg)
        self._outbox = Outbox()
        self._said: dict[tuple, Shape] = {}  # (peer, site) -> what was announced to the peer
        self._heard: dict[tuple, Shape] = {}  # (peer, site) -> what the peer announced
        self._coming: dict[tuple, _Announcement] = {}  # what it will announce

    @classmethod
    def of(cls, group=None) -> "Group":
        """A Group as it is; a ProcessGroup, or None for torch's default one, as a plain Group."""
        return group if isinstance(group, Group) else Group(group)

    # -- messages -------------------------------------------------------------------------------------------

    def isend(self, tensor: torch.Tensor, dst: int, name="", site: str = "", tag: int = 0) -> None:
        """Post a message to rank `dst` of the group; do not change the tensor before `finish`.

        Impossible, naming the ranks, where the site's messages had another shape before.
        """
        site, way = self._way(dst, name, site, tag)
        with self._watching(dst, name):
            self._announce(tensor, dst, site)
            wire = self._wire(tensor, dst, name, way)
            self._outbox.add(dist.isend(wire, group=self._pg, group_dst=dst, tag=way), wire)

    def recv(self, src: int, name="", site: str = "", tag: int = 0, like=None) -> torch.Tensor:
        """The next message from rank `src` of the group, in a new tensor.

        `like`: a tensor, or (dtype, shape), that it must look like, else Impossible.
        """
        return self._posted(src, name, site, tag, like).wait()

    def irecv(self, buffer: torch.Tensor | None, src: int, name="", site: str = "", tag: int = 0) -> Handle:
        """Post a receive into `buffer`, or into a new tensor where it is None; `.wait()` returns it, filled.

        Impossible, in wait, where the message is unlike the buffer.
        """
        posted = self._posted(src, name, site, tag, buffer)
        if buffer is None:
            return posted

        def wait():
            with torch.no_grad():
                return buffer.copy_(posted.wait())
        return Handle(wait)

    def finish(self) -> None:
        """Return when every message that was posted has been taken."""
        with self._watching(None, ""):
            self._outbox.finish()

    # -- collectives ----------------------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", name: str = "all_reduce") -> torch.Tensor:
        """Replace the tensor on every rank by the sum, mean, max, min or product over the ranks; returns it."""
        if op not in (*OPERATIONS, "mean"):
            raise Impossible(f"There is no reduction {op!r}: choose one of {', '.join(OPERATIONS)}, mean.")
        with self._together(name):
            dist.all_reduce(tensor, OPERATIONS["sum" if op == "mean" else op], group=self._pg)
        return tensor.div_(self.size) if op == "mean" else tensor

    def broadcast(self, tensor: torch.Tensor, src: int = 0, name: str = "broadcast") -> torch.Tensor:
        """Replace the tensor on every rank by that of rank `src`; returns it."""
        with self._together(name):
            dist.broadcast(tensor, group_src=src, group=self._pg)
        return tensor

    def barrier(self, name: str = "barrier") -> None:
        """Return when every rank has come here."""
        with self._together(name):
            dist.barrier(group=self._pg)

    # -- what a recording group does as well ----------------------------------------------------------------

    def span(self, step, version: int | None = None):
        """Around the work of a step (a tuple of actions) on weights of this version."""
        return nullcontext()

    def world_rank(self, rank: int) -> int:
        """The rank in the whole job of a rank of this group: the number to name in a sentence."""
        return dist.get_global_rank(self._pg, rank)

    def _wire(self, tensor, dst, name, way) -> torch.Tensor:
        return tensor.detach().contiguous().to(HOST)

    def _room(self, shape: Shape) -> torch.Tensor:
        return shape.empty()

    def _take(self, wire, shape, src, name) -> torch.Tensor:
        return wire.to(self.device)

    def _waiting(self, src, way, name, site):
        return self._watching(src, name)

    def _together(self, name):
        return self._watching(None, name)

    # -- sites ----------------------------------------------------------------------------------------------

    def _way(self, peer: int, name, site: str, tag: int) -> tuple[str, int]:
        if not 0 <= peer < self.size or peer == self.rank:
            raise Impossible(f"Rank {self.rank} cannot exchange {name or 'a message'} with rank {peer}: "
                             f"name another of the ranks 0 to {self.size - 1}.")
        site = site or (f"{name.stage}{name.kind}" if hasattr(name, "kind") else "")
        return site, channel(site, str(name), tag)

    def _posted(self, src: int, name, site: str, tag: int, like) -> Handle:
        site, way = self._way(src, name, site, tag)
        with self._watching(src, name):
            receive = self._expect(src, site, way, like)

        def wait():
            with self._waiting(src, way, name, site):
                shape = self._arrive(receive, src, site, name)
            return self._take(receive.wire, shape, src, name)
        return Handle(wait)

    def _announce(self, tensor, dst: int, site: str) -> None:
        shape = Shape.of(tensor)
        said = self._said.get((dst, site))
        if said is None:
            code = shape.encode()
            self._outbox.add(dist.isend(code, group=self._pg, group_dst=dst, tag=channel(site, "shape", -1)), code)
            self._said[dst, site] = shape
        elif said != shape:
            raise Impossible(f"Rank {self.world_rank(self.rank)} sends rank {self.world_rank(dst)} {shape} where it sent {said} before"
                             f"{f' (site {site})' if site else ''}: give messages of another shape a site= of their own.")

    def _expect(self, src: int, site: str, way: int, like) -> _Receive:
        """Post a receive now, or when its site's announcement is in: gloo ends a process whose buffer is too small."""
        receive = _Receive(way, like)
        if shape := self._heard.get((src, site)):
            self._post(receive, src, shape)
            return receive
        if (src, site) not in self._coming:  # it is sent once, whoever waits for it
            code = Shape((torch.int64, (16,))).empty()
            work = dist.irecv(code, group=self._pg, group_src=src, tag=channel(site, "shape", -1))
            self._coming[src, site] = _Announcement(work, code, [])
        self._coming[src, site].receives.append(receive)
        return receive

    def _post(self, receive: _Receive, src: int, shape: Shape) -> None:
        if receive.like in (None, shape):
            receive.wire = self._room(shape)
            receive.work = dist.irecv(receive.wire, group=self._pg, group_src=src, tag=receive.way)

    def _arrive(self, receive: _Receive, src: int, site: str, name) -> Shape:
        """Wait until the receive's wire is filled; the message's shape. Impossible where it is unlike what was expected."""
        if coming := self._coming.get((src, site)):
            coming.work.wait()
            self._heard[src, site] = Shape.decode(coming.code)
            del self._coming[src, site]
            for each in coming.receives:
                self._post(each, src, self._heard[src, site])
        shape = self._heard[src, site]
        if receive.like not in (None, shape):
            raise Impossible(f"Rank {self.world_rank(self.rank)} expects {receive.like} from rank {self.world_rank(src)}, which sends "
                             f"{shape}{f' ({name or site})' if name or site else ''}: make the two ranks agree on the shape.")
        receive.work.wait()
        return shape

    def _watching(self, peer: int | None, name):
        return _Watching(self, peer, name)


class _Watching:
    """Turns the error of a broken connection into the sentence that a peer is gone: its failure came first."""

    def __init__(self, group, peer, name):
        self.group, self.peer, self.name = group, peer, name

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if is_lost(error) and not isinstance(error, PeerLost):
            who = "another rank" if self.peer is None else f"rank {self.group.world_rank(self.peer)}"
            raise PeerLost(f"Rank {self.group.world_rank(self.group.rank)} lost the connection to {who} "
                           f"at {self.name or 'a message'}: {str(error).splitlines()[0][:200]}") from error
