"""The ranks that torchrun started on one or several machines, brought to the state in which a run begins.

    meet        at the store that torchrun names; each rank introduces itself
    compare     all must have been asked the same: settings, ranks, versions
    connect     gloo, over the loopback where all share a network, else over the interface that reaches the others
    clocks      how far each machine's clock is from rank 0's (offset.py); asked again at the end
    the job     rank 0's, with its cost and its program: what a machine has measured must not make its ranks differ from others
    directory   made by rank 0; every rank must see it
"""

import json
import os
import platform
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from ..core import Impossible, write_whole
from . import border, peers
from .board import PATIENCE_S, Board
from .border import Place
from .devices import Devices, Node, choose, nccl_here, visible
from .kept import read_settings
from .machine import cores
from .offset import Offset, beyond_the_wall, clock_id, offsets
from .run import this_process

CONNECT_S, SEEN_S, LEAVE_S = 120.0, 5.0, 30.0


class Member(NamedTuple):
    """What a rank says of itself. Two ranks share a clock, a network or a table of processes where these words are equal."""

    host: str
    clock: str
    network: str
    processes: str
    process: list  # host, pid, start
    address: str  # its own, on the way to rank 0
    beyond_the_wall: int
    cores: int
    gpus: int
    asked: dict

    @classmethod
    def here(cls, asked: dict) -> "Member":
        spaces = {}
        for name in ("net", "pid"):
            try:
                spaces[name] = clock_id() + os.readlink(f"/proc/self/ns/{name}")
            except OSError:  # no Linux
                spaces[name] = platform.node()
        try:
            address = peers.own_address(peers.resolve(border.meeting_point()))
        except peers.Unreachable:
            address = "127.0.0.1"
        return cls(platform.node(), clock_id(), spaces["net"], spaces["pid"], this_process(), address, beyond_the_wall(), cores(),
                   visible(), asked)


class Team:
    """All ranks of the job that `place` is one of, connected; Impossible, on every rank, where they cannot work together."""

    def __init__(self, place: Place, asked: dict):
        self.place, self.index, self.ours = place, place.index, not dist.is_initialized()
        base = Board(store_of_all(place), place.index, place.ranks).within(f"bigtrain_lab {place.restart}")
        self.board = base.within(base.count(f"runs of {place.index}", 1))  # a script may start several runs, one after the other
        self.members = [Member(*each) for each in self.board.everyones("here", Member.here(asked))]
        self.me = self.members[place.index]
        try:
            refuse_differences([member.asked for member in self.members])
            self.devices = self._devices(asked["device"])
            if self.ours:
                self._connect()
        except Impossible:
            self.leave(LEAVE_S)
            raise
        self.offsets = self._offsets()

    @property
    def mates(self) -> dict[int, list]:
        """Other ranks whose processes this one can see: rank -> [host, pid, start]."""
        return {rank: m.process for rank, m in enumerate(self.members) if m.processes == self.me.processes and rank != self.index}

    def hosts(self) -> list[dict]:
        """What the run's settings say of its machines, one entry a clock."""
        told = []
        for clock, ranks in self._machines().items():
            offset = self.offsets[clock]
            first = self.members[ranks[0]]
            ahead = offset.ns + first.beyond_the_wall - self.members[0].beyond_the_wall if offset.error_ns else 0
            told.append({"name": first.host, "ranks": ranks, "cores": first.cores, "gpus": first.gpus, "offset_ns": offset.ns,
                         "ahead_s": ahead / 1e9, "error_s": offset.error_ns / 1e9})
        return told

    def agree(self, prepare, program: bytes) -> tuple:
        """Rank 0's job, which `prepare(hosts, devices)` makes there, with this machine's zero, and rank 0's program. Every rank sees
        the job's directory."""
        shared = [None, program if self.index == 0 else None]
        if self.index == 0:
            try:
                shared[0] = prepare(self.hosts(), self.devices)
            except Impossible as error:  # the other ranks must hear of it
                shared[0] = str(error)
        dist.broadcast_object_list(shared, src=0)
        job, program = shared
        try:
            if isinstance(job, str):
                raise Impossible(job)
            self._refuse_unseen(job)
        except Impossible:
            self.leave(LEAVE_S)
            raise
        return replace(job, zero_ns=job.zero_ns + self.offsets[self.me.clock].ns), program

    def ask_clocks_again(self, directory: Path) -> None:
        """At the end of a run that is done on all ranks: let its settings say by how much each clock has moved at most since the
        start, |offset then - offset now| + both errors. What is lost now loses only that."""
        machines = self._machines()
        if len(machines) == 1:
            return
        with suppress(RuntimeError, Impossible, OSError):
            now = self._offsets()
            if self.index == 0:
                settings = read_settings(directory)
                for host, clock in zip(settings["hosts"], machines, strict=True):
                    was, found = self.offsets[clock], now[clock]
                    host["moved_s"] = (abs(found.ns - was.ns) + found.error_ns + was.error_ns) / 1e9
                write_whole(directory / "settings.json", json.dumps(settings, indent=1))

    def leave(self, patience_s: float) -> None:
        """Rank 0's process may hold the store: it goes last, if the others go soon."""
        if self.place.agent:
            return  # torchrun holds it
        try:
            self.board.count("left", 1)
            until = time.monotonic() + patience_s
            while self.index == 0 and self.board.count("left") < self.place.ranks and time.monotonic() < until:
                time.sleep(0.01)
        except RuntimeError:
            pass  # it has gone already

    # -- one by one -----------------------------------------------------------------------------------------

    def _machines(self) -> dict[str, list[int]]:
        """The ranks on each machine, by its clock."""
        found: dict[str, list[int]] = {}
        for rank, member in enumerate(self.members):
            found.setdefault(member.clock, []).append(rank)
        return found

    def _devices(self, device: str) -> Devices:
        """As devices.py chooses for all machines, in the order of the ranks."""
        machines = list(self._machines().values())
        chosen = choose([Node(len(ranks), min(self.members[rank].gpus for rank in ranks)) for ranks in machines], device, nccl_here())
        by_rank = dict(zip((rank for ranks in machines for rank in ranks), chosen.of, strict=True))
        return chosen._replace(of=tuple(by_rank[rank] for rank in range(self.place.ranks)))

    def _connect(self) -> None:
        name = border.interface()
        if name is None:
            elsewhere = [m.address for m in self.members if m.network != self.me.network]
            try:
                name = peers.between(self.me.address, elsewhere) if elsewhere else border.LOOPBACK
            except peers.Unreachable:
                name = None
            if name:
                border.use_interface(name)
        where = f"Rank {self.index} on {self.me.host} cannot connect to the other ranks over {name or 'its network'}"
        mend = ("let the nodes reach each other on all ports, or set GLOO_SOCKET_IFNAME on each node to the interface that "
                "`bigtrain doctor --peer` names there.")
        store = dist.PrefixStore("gloo", self.board.store)
        try:
            with patience(f"{where} within {CONNECT_S:g} s: {mend}"):
                dist.init_process_group(self.devices.backend, store=store, rank=self.index, world_size=self.place.ranks, timeout=timedelta(days=7))
        except (RuntimeError, ValueError) as error:
            raise Impossible(f"{where} ({str(error).splitlines()[0][:160]}): {mend}") from error

    def _offsets(self) -> dict[str, Offset]:
        shared = [offsets(self.index, [member.clock for member in self.members])]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def _refuse_unseen(self, job) -> None:
        path, until = Path(job.directory) / "settings.json", time.monotonic() + SEEN_S
        while not (seen := readable(path)) and time.monotonic() < until:
            time.sleep(0.1)  # a shared disk may take a moment to show a new file
        blind = [rank for rank, sees in enumerate(self.board.everyones("sees", seen)) if not sees]
        if blind:
            if self.index == 0:  # nothing has run: leave nothing
                forget(path.parent)
            raise Impossible(f"Rank {blind[0]} on {self.members[blind[0]].host} does not see the run directory {job.directory} that rank 0 "
                             f"on {self.members[0].host} made: choose a --directory on a disk that all nodes share.")


def store_of_all(place: Place):
    """The store that torchrun's ranks meet at; Impossible where it does not answer."""
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    point = border.meeting_point()
    try:
        address, until = peers.resolve(point), time.monotonic() + PATIENCE_S
        while place.index or place.agent:  # rank 0 of a job that was started by hand opens it itself, in its own time
            try:
                peers.connect(address, point.port)
                break
            except peers.Unreachable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=PATIENCE_S)))
    except (peers.Unreachable, RuntimeError) as error:
        raise Impossible(f"Rank {place.index} does not reach rank 0 at {point} ({str(error).splitlines()[0][:160]}): "
                         f"try `bigtrain doctor --peer {point}` on its node.") from error
    return store


def refuse_differences(asked: list[dict]) -> None:
    """Impossible, naming a rank and what differs, where the ranks were not asked for the same; the experiment's "settings" one by one."""
    told = [{**{("launch", name): value for name, value in own.items() if name != "settings"},
             **{("settings", name): value for name, value in own.get("settings", {}).items()}} for own in asked]
    for rank, own in enumerate(told):
        for key in told[0] | own:
            if own.get(key) != told[0].get(key):
                raise Impossible(f"Rank {rank} was started with {key[1].replace('_', '-')} {own.get(key)!r} and rank 0 with {told[0].get(key)!r}: "
                                 "give every node the same command and the same versions.")


def readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def forget(directory: Path) -> None:
    """Take back a run directory in which nothing has happened."""
    for name in ("settings.json", "environment.json"):
        (directory / name).unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


@contextmanager
def patience(sentence: str, limit_s: float = CONNECT_S):
    """End this process with a sentence where the work inside takes longer; no call of gloo's can be interrupted."""
    def give_up():
        os.write(2, f"bigtrain: {sentence}\n".encode())
        os._exit(2)

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
