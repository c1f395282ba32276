"""The group that the runtime hands out: the same messages, each with its sender's virtual time in front.

    isend   issue, stamp = lane.send(link, bytes)            travel with the data
    recv    arrival = lane.receive(stamp, link, bytes)       logged as a Transfer from stamp to arrival
    a backend's own collective: the issues are exchanged, and it ends for all at the latest issue + its cost; so is what
            each rank calls, and a mismatch is a sentence

Under a modelled clock the bytes that are charged are those of the tensor; for an Action whose kind the Cost prices no
message they are 0, as in the prediction. The measured Transfer says the tensor's bytes always. With the clock off there
is no header, hence no sender's time: a measured Transfer then begins when the receiver begins to wait.
"""

from contextlib import contextmanager
from math import isfinite
from zlib import crc32

import torch
import torch.distributed as dist

from ..core import Impossible
from ..schedule import Action
from .group import Group
from .message import HEADER, Shape, pack, unpack
from .recorder import Recorder
from .waits import ranks

CALL_BYTES = 256  # of the words for a collective


class RecordingGroup(Group):
    """`members[i]` is the job's rank of the group's rank i; its messages belong to `lane`."""

    def __init__(self, recorder: Recorder, process_group=None, lane: str = "compute"):
        super().__init__(process_group)
        self.recorder, self.lane = recorder, lane
        self.members = tuple(dist.get_process_group_ranks(self._pg))
        self._began = 0

    def span(self, step, version: int | None = None):
        return self.recorder.span(step, version, self.lane)

    def world_rank(self, rank: int) -> int:
        return self.members[rank]

    def isend(self, tensor, dst, name="", site="", tag=0):
        self.recorder.jitter()
        super().isend(tensor, dst, name, site, tag)

    def finish(self):
        log, clock = self.recorder.log, self.recorder.clock
        log.write("@finish", clock.wall())
        super().finish()
        log.write("@got", clock.wall(), -1)

    # -- a message's way ------------------------------------------------------------------------------------

    def _charged(self, name, size_bytes: int) -> int:
        return 0 if isinstance(name, Action) and name.kind not in self.recorder.clock.cost.messages else size_bytes

    def _wire(self, tensor, dst, name, way):
        to, clock = self.members[dst], self.recorder.clock
        self.recorder.sending(to, way, str(name))
        if self.recorder.all_finite("sent") and not is_finite(tensor):  # only the first one is told: look no further
            self.recorder.not_finite("sent", str(name) or "a message", self.lane)
        if not clock.modelled:
            return super()._wire(tensor, dst, name, way)
        link = clock.cost.link(self.recorder.rank, to)
        issue, stamp = clock.lane(self.lane).send(link, self._charged(name, tensor.nbytes))
        return pack(tensor, issue, stamp, clock.wall())

    def _room(self, shape: Shape):
        if not self.recorder.clock.modelled:
            return super()._room(shape)
        return torch.empty(HEADER.size + shape.nbytes, dtype=torch.uint8)

    def _take(self, wire, shape, src, name):
        src, rank, clock = self.members[src], self.recorder.rank, self.recorder.clock
        wall_start, wall_end, start, done = self._began, clock.wall(), None, None
        tensor, size = wire, wire.nbytes
        charged = size
        if clock.modelled:
            tensor, _, start, wall_start = unpack(wire, shape)
            size = tensor.nbytes
            charged = self._charged(name, size)
            done = clock.lane(self.lane).receive(start, clock.cost.link(src, rank), charged)
        kind = name.kind if isinstance(name, Action) else "message"
        self.recorder.log.write("transfer", wall_start, wall_end, size, rank, self.lane, kind, str(name), start, done, src, charged)
        return tensor.to(self.device)

    @contextmanager
    def _waiting(self, src, way, name, site):
        self.recorder.jitter()
        self._began = self.recorder.clock.wall()
        with self.recorder.waiting(self.members[src], way, str(name) or site), super()._waiting(src, way, name, site):
            yield

    # -- collectives ----------------------------------------------------------------------------------------

    def all_reduce(self, tensor, op="sum", name="all_reduce"):
        self._call = f"all_reduce ({op}) of {Shape.of(tensor)}"
        return super().all_reduce(tensor, op, name)

    def broadcast(self, tensor, src=0, name="broadcast"):
        self._call = f"broadcast from rank {src} of {Shape.of(tensor)}"
        return super().broadcast(tensor, src, name)

    def barrier(self, name="barrier"):
        self._call = "barrier"
        super().barrier(name)

    @contextmanager
    def _together(self, name):
        self.recorder.jitter()
        recorder, clock = self.recorder, self.recorder.clock
        wall_start = clock.wall()
        with recorder.waiting(None, 0, name, self._pg.group_name, self.members), super()._together(name):
            start, end = clock.now(self.lane), None
            latest = self._agree(start or 0)
            yield
            if clock.modelled:
                end = latest + clock.cost.duration((Action(name, 0, 0),), recorder.rank)
                clock.lane(self.lane).now = end
        recorder.log.write("span", wall_start, clock.wall(), recorder.rank, self.lane, name, name, start, end, None)

    def _agree(self, start: int) -> int:
        """The latest start of all. Impossible, on every rank, where they are about to call different collectives: the
        backend would hang, or add up what does not belong together."""
        call = crc32(self._call.encode())
        latest = torch.tensor([start, call, -call])
        dist.all_reduce(latest, dist.ReduceOp.MAX, group=self._pg)
        if int(latest[1]) != -int(latest[2]):
            calls = self._calls()
            told = "; ".join(f"{ranks(self.members[i] for i in range(self.size) if calls[i] == one)} {one}" for one in dict.fromkeys(calls))
            raise Impossible(f"The ranks call different collectives at one time: {told}. Let all call the same ones in the same order.")
        return int(latest[0])

    def _calls(self) -> list[str]:
        """What each rank calls, as text: nothing that came from another rank is unpickled."""
        own = torch.frombuffer(bytearray(self._call.encode()[:CALL_BYTES].ljust(CALL_BYTES)), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self._pg)
        return [bytes(each.numpy()).decode(errors="replace").rstrip() for each in found]


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite. One pass: a finite sum tells it of all; one that is not may have overflowed."""
    if not tensor.is_floating_point() or tensor.itemsize < 2:  # float8 adds up on no CPU
        return True
    tensor = tensor.detach()
    return isfinite(tensor.sum()) or bool(tensor.isfinite().all())
