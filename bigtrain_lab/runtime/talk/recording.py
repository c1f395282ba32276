"""The group that the runtime hands out: the same messages, each with its sender's virtual time in
front.

    isend   issue, stamp = lane.send(link, bytes)            travel with the data
    recv    arrival = lane.receive(stamp, link, bytes)       logged as a Transfer from stamp to
                                                             arrival
    a backend's own collective: the issues are exchanged, and it ends for all at the latest issue +
    its cost; so is what
            each rank calls, and a mismatch is a sentence

Under a modelled clock the bytes that are charged are those of the tensor; for a message that the
Cost prices at nothing they are 0, as in the prediction. The measured Transfer says the tensor's
bytes always. A collective is a Span of its lane and, where it moves bytes, the Transfer of a ring:
what a rank gets from the one before it; a backend may go other ways. With the clock off there is no
header, hence no sender's time: a measured Transfer then begins when the receiver begins to wait.
"""

import ctypes
import threading
from contextlib import contextmanager
from functools import partial
from math import isfinite

import torch

from ...core import Impossible
from ...order.plan import INSIDE, Message, Together
from ..failure import frames
from ..failure.wait_graph import ranks
from ..record.recorder import Recorder
from .group import HOST, Group, again, is_lost
from .message import HEADER, pack, unpack


class RecordingGroup(Group):
    """`members[i]` is the job's rank of the group's rank i; its messages belong to the lane
    `name`."""

    def __init__(self, recorder: Recorder, *where, **named):
        super().__init__(*where, **named)
        self.recorder = recorder
        self._began = 0

    def span(self, step, version: int | None = None, beside: bool = False):
        return self.recorder.span(step, version, self.name, beside)

    def unrecorded(self):
        return Group(self._pg, self.device)

    def finish(self):
        self.recorder.mark("finish", lane=self.name)
        super().finish()
        self.recorder.mark("got", -1, lane=self.name)

    # -- a message's way ---------------------------------------------------------------------------

    def _on_lane(self, what) -> None:
        if self.recorder.lane != self.name:
            raise Impossible(
                f"Rank {self.recorder.rank} calls {what or 'a message'} of lane {self.name} from"
                f" lane {self.recorder.lane}: let a lane's group be used by what is launched on it,"
                " and no other."
            )

    def _charged(self, message: Message, size_bytes: int) -> int:
        return size_bytes if self.recorder.clock.cost.message_bytes(message) else 0

    def _link(self, src: int, dst: int):
        return self.recorder.clock.cost.link(src, dst, self.name)

    def _wire(self, tensor, dst, name, way):
        self.recorder.jitter()
        clock = self.recorder.clock
        self._sending(dst, way, name)
        self._note_not_finite(tensor, name)
        if not clock.modelled:  # a copy, as under a clock: when it goes is the transport's affair
            return super()._wire(tensor.clone(), dst, name, way)
        link = self._link(self.recorder.rank, self.members[dst])
        charged = self._charged(message(name, tensor.nbytes), tensor.nbytes)
        issue, stamp = clock.lane(self.name).send(link, charged)
        return pack(tensor, issue, stamp, clock.wall())

    def _note_not_finite(self, tensor, name) -> None:
        self.recorder.look_at(
            "sent", str(name) or "a message", self.name, partial(is_finite, tensor)
        )

    def _room(self, shape, buffer):
        if not self.recorder.clock.modelled:
            return super()._room(shape, buffer)
        return torch.empty(HEADER.size + shape.nbytes, dtype=torch.uint8)

    def _take(self, receive):
        src, rank, clock = self.members[receive.src], self.recorder.rank, self.recorder.clock
        wall_start, wall_end, start, done = self._began, clock.wall(), None, None
        tensor, size = receive.wire, receive.shape.nbytes
        sent, charged = message(receive.name, size), size
        with self._transport():
            if clock.modelled:
                tensor, _, start, wall_sent = unpack(receive.wire, receive.shape)
                wall_start = min(wall_sent, wall_end)  # another machine's is known to its error
                charged = self._charged(sent, size)
                done = clock.lane(self.name).receive(start, self._link(src, rank), charged)
                receive.wire = None  # the handle lives on
            where = rank, self.name, sent.kind, str(receive.name)
            self.recorder.log.write(
                "transfer", wall_start, wall_end, size, *where, start, done, src, charged
            )
            return tensor.to(self.device)

    def _arrive(self, receive):
        super()._arrive(receive)
        if self.recorder.clock.modelled:
            return HEADER.unpack_from(receive.wire.numpy(), 0)[0]

    def reaches(self, dst):
        clock = self.recorder.clock
        if clock.modelled:
            alpha = self._link(self.recorder.rank, self.members[dst]).alpha
            return clock.lane(self.name).outgoing + alpha

    def _sending(self, dst, way, name):
        self._on_lane(name)
        self.recorder.mark("send", self.members[dst], way, str(name), lane=self.name, now=False)

    @contextmanager
    def _waiting(self, name, src=None, way=0):
        self._on_lane(name)
        self.recorder.jitter()
        self._began = self.recorder.clock.wall()
        whom = None if src is None else self.members[src]
        all_of = (self._pg.group_name, self.members) if src is None else ()
        self.recorder.mark("wait", whom, way, name, *all_of, lane=self.name)
        with self._watching(src, name):
            yield
        self.recorder.mark("got", way, lane=self.name)

    # -- other lanes -------------------------------------------------------------------------------

    def _again(self, lane):
        self.recorder.refuse_taken(lane)
        return RecordingGroup(self.recorder, again(self._pg, lane), self.device, name=lane)

    def enter(self):
        self.recorder.enter(self.name)
        self.recorder.mark("begin", threading.get_ident())

    def post(self, signal):
        self.recorder.jitter()
        self.recorder.mark("signal", signal, now=False)
        return self.recorder.issue()

    def issue(self, signal, then):
        now = partial(super().issue, signal, then)
        if not self.recorder.later(now):
            now()

    def after(self, signal, by, arrived, idle=False):
        self.recorder.jitter()
        self.recorder.mark("idle" if idle else "await", signal, *([] if idle else [by]))
        until = arrived()
        self.recorder.mark("got", -1, now=False)
        self.recorder.clock.wait(self.recorder.lane, until)

    def failed(self, error, sentence):
        if not is_lost(error):
            place = frames.of_error(error)
            self.recorder.mark("failed", sentence + (f"\n  at {place}" if place else ""))
        return super().failed(error, sentence)

    # -- collectives -------------------------------------------------------------------------------

    def all_reduce(self, tensor, op="sum", name="all_reduce"):
        if self.size > 1:
            with self.recorder.aside():
                self._note_not_finite(tensor, name)
        return super().all_reduce(tensor, op, name)

    def _transport(self):
        return self.recorder.aside()

    def _lent(self, tensor):
        """Torch's thread lets go of what it was handed a moment after the collective has ended, and
        a ledger would count that moment: so of the host's memory this is a tensor that owns
        nothing."""
        if tensor.device != HOST or not tensor.nbytes or not tensor.is_contiguous():
            return tensor
        memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
        return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)

    @contextmanager
    def _together(self, name, kind, size_bytes, call, src=None):
        self._on_lane(name)
        if self.size == 1:  # nobody to wait for, and nothing to send
            yield
            return
        recorder, clock, lane = self.recorder, self.recorder.clock, self.name
        self._call = call if name == kind else f"{name}, {call}"
        beside = f"comm:{self.axis}"
        if self.axis in INSIDE and (inside := recorder.call(beside, kind, size_bytes, name)):
            lane, name = beside, inside
        root = src or 0  # of a collective without one all ranks are alike
        members = (self.members[root], *self.members[:root], *self.members[root + 1 :])
        about = Together(name, kind, size_bytes, members)
        with self._waiting(name):
            start, end, wall_start = clock.now(lane), None, self._began
            with recorder.aside():
                latest = self._agree(start or 0)
                wall_latest = clock.wall()
                yield
            if clock.modelled:
                end = latest + clock.cost.collective(kind, size_bytes, members, lane)
                clock.lane(lane).now = end
                clock.wait(self.name, end)
        wall_end, rank = clock.wall(), recorder.rank
        where = rank, lane, kind, name
        recorder.log.note("span", wall_start, wall_end, *where, start, end, None)
        if arriving := about.arriving(rank):
            other, size = arriving
            times = (latest, end) if clock.modelled else (None, None)
            recorder.log.note("transfer", wall_latest, wall_end, size, *where, *times, other, size)
        recorder.log.write()

    def _agree(self, start: int) -> int:
        """The latest start of all. Impossible, on every rank, where they are about to call
        different collectives: the backend would hang, or add up what does not belong together."""
        latest, calls = self._compared(self._call, start)
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


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite. One pass: a finite sum tells it of all; one that is
    not may have overflowed."""
    if not tensor.is_floating_point() or tensor.itemsize < 2:  # float8 adds up on no CPU
        return True
    tensor = tensor.detach()
    return isfinite(tensor.sum()) or bool(tensor.isfinite().all())


def message(name, size_bytes: int):
    """What a name names: an Action or a Message is itself, text a message of this size."""
    return Message(name, bytes=size_bytes) if isinstance(name, str) else name
