"""A Rank is what a program receives: its number, its place on the mesh, its groups, its generators,
its record."""

import hashlib

import torch
import torch.distributed as dist

from ..core import Mesh
from .record.recorder import Recorder
from .talk.group import Alone, Group
from .talk.lanes import LaneRunner
from .talk.unrecorded import UNRECORDED, Unrecorded


class Rank:
    """`index` of `size` ranks. With no recorder every group is a plain one, and spans, logs and
    watches do nothing: a program runs on Rank(0, Mesh(world=1), device) in this very process."""

    def __init__(
        self,
        index: int,
        mesh: Mesh,
        device: torch.device,
        seed: int = 0,
        recorder: Recorder | Unrecorded = UNRECORDED,
    ):
        self.index, self.size, self.mesh = index, mesh.size, mesh
        self.device, self.seed, self._recorder = device, seed, recorder
        self._groups: dict[str | tuple | None, Group] = {}  # by axis, or by ranks and lane

    def group(self, axis: str | tuple[str, ...] | None = None) -> Group:
        """The ranks that differ from this one along the axis, or these axes, only (None: all
        ranks)."""
        if axis not in self._groups:
            axes = (axis,) if isinstance(axis, str) else axis
            peers = tuple(range(self.size)) if axes is None else self.mesh.peers(self.index, *axes)
            self._groups[axis] = self._of(peers, "compute", "+".join(axes or ()))
        return self._groups[axis]

    def lane(self, axis: str | None = None, name: str = "") -> LaneRunner:
        """A lane beside "compute", which is the program's own, for messages among the ranks of
        the axis; it is called "comm:dp" after it. All of them ask for it, in one order."""
        return self.group(axis).lane(name)

    def among(self, ranks: tuple[int, ...], lane: str = "compute") -> Group:
        """A group of these ranks, of which this is one, for what runs on `lane`. All of them ask
        for it, in one order."""
        if (key := (tuple(sorted(ranks)), lane)) not in self._groups:
            self._groups[key] = self._of(*key)
        return self._groups[key]

    def _of(self, peers: tuple[int, ...], lane: str, axis: str = "") -> Group:
        if self.size == 1 and not dist.is_initialized():
            return Alone(self.device)
        whole = len(peers) == self.size and lane == "compute"
        told = {"use_local_synchronization": True, "group_desc": f"{axis}/{lane}"}
        members = None if whole else dist.new_group(list(peers), **told)
        return Group(members, self.device, axis, lane, self._recorder)

    def span(self, step, version: int | None = None, beside: bool = False):
        """Around work that occupies this rank: a step (tuple of actions), an Action, or a name.
        `beside`: its plan lets another lane be busy meanwhile."""
        return self._recorder.span(step, version, beside=beside)

    def rng(self, axis: str | None = None) -> torch.Generator:
        """A generator seeded by (seed, the coordinate on that axis; all of them for None): peers on
        other axes draw alike."""
        place = self.index if axis is None else self.mesh.coords(self.index)[axis]
        digest = hashlib.sha256(f"{self.seed}/{axis}/{place}".encode()).digest()
        return torch.Generator(self.device).manual_seed(int.from_bytes(digest[:7], "big"))

    def log(self, name: str, value: float) -> None:
        """Report a number, such as a loss; it becomes a Scalar at the present time."""
        self._recorder.scalar(name, value)

    def histogram(self, name: str, tensor: torch.Tensor) -> None:
        """Report how a tensor's values spread over the powers of two; it becomes a Histogram at the
        present time."""
        self._recorder.histogram(name, tensor)

    def aside(self):
        """Around what is no part of the training, such as a comparison or a look at its tensors: no
        ledger sees it."""
        return self._recorder.aside()

    def watch(self, holdings) -> None:
        """Let the ledger call `holdings()` -> {kind: tensors, or {name: tensor}} at action
        boundaries. The kinds are core.MEMORY_KINDS, which are reported, and inputs and buffers,
        whose tensors only are kept from counting as another kind.
        """
        self._recorder.watch(holdings)

    def finish(self) -> None:
        """Return when all lanes have done what was launched, and every message that this rank
        posted has been taken."""
        groups = [group for group in self._groups.values() if group.name == "compute"]
        for group in groups:
            for lane in group.lanes.values():
                lane.finish()
        for group in groups:
            group.finish()
