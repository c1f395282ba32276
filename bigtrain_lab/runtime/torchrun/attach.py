"""A run on ranks that torchrun (or Slurm or Kubernetes through it) started; each runs its own
program.

meet        on the board (board.py); each rank introduces itself
compare     all must have been asked the same: settings, ranks, versions, the program's code
connect     gloo, over the loopback where all share a network, else over the interface that reaches
            the others
clocks      how far each machine's clock is from rank 0's (offset.py)
the job     rank 0's, with its cost: what a machine has measured must not make its ranks differ.
            It travels as values; the program does not, each rank has its own
directory   made by rank 0; every rank must see it, and keeps its own log there
the end     told as under `launch`: by one rank in full, by the others in a sentence (lookout.py)
"""

import hashlib
import inspect
import platform
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch
import torch.distributed as dist

from ...core import Cost, Impossible, Link, Mesh
from ...order.schedule import Action
from ..devices import Devices, Node, choose, nccl_here, visible
from ..failure.faults import Fault
from ..machine import cores
from ..process import border
from ..process.border import Place
from ..process.child import Job, work
from ..process.end import INTERRUPTED, UNWRITABLE, forget
from ..process.pulse import this_process
from ..record.kept import read_settings
from ..record.log import LogUnwritable
from ..record.run import RankFailed, Run
from . import peers
from .board import Board, run_of
from .lookout import Lookout
from .offset import Offset, machine, offsets

CONNECT_S = 120.0  # for gloo to connect ranks that are all there
SEEN_S = 30.0  # for a shared disk to show a new file


def run_in_place(place: Place, program, asked: dict, prepare, stall_s: float, informed=None) -> Run:
    """Run the program as rank `place.index` and return when all ranks have. RankFailed where one
    failed, Impossible where the ranks cannot work together.

    asked       what every rank must have been asked for alike
    prepare     hosts, devices -> Job: makes the run's directory; called by rank 0 alone
    informed    facts -> program, of a program that depends on what rank 0 has measured
    """
    team = Team(place, run_of(place), {**asked, "program": digest(program)})
    job = team.agree(prepare)

    def load():
        facts = read_settings(Path(job.directory))["settings"].get("facts")
        return informed(facts) if informed and facts else program

    threads = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        lookout = Lookout(team, job, stall_s)
        try:
            code = work(place.index, job, load)
        except LogUnwritable:
            code = UNWRITABLE
        end = lookout.finish(code)
    finally:
        torch.set_num_threads(threads)
    if end.diagnosis == INTERRUPTED:
        raise KeyboardInterrupt
    if end.state != "done":
        raise RankFailed(lookout.words())
    if team.ours:
        dist.destroy_process_group()
    return Run(job.directory)


class Member(NamedTuple):
    """What a rank says of itself."""

    host: str
    machine: str
    process: list  # host, pid, start
    address: str  # its own, on the way to rank 0
    cores: int
    gpus: int
    asked: dict

    @classmethod
    def here(cls, asked: dict) -> "Member":
        try:
            address = peers.own_address(peers.resolve(border.meeting_point()))
        except peers.Unreachable:
            address = "127.0.0.1"
        return cls(
            platform.node(),
            machine(),
            this_process(),
            address,
            cores(),
            visible(),
            asked,
        )


class Team:
    """All ranks of the job that `place` is one of, connected; Impossible, on every rank, where they
    cannot work together."""

    def __init__(self, place: Place, board: Board, asked: dict):
        self.place, self.index, self.board = place, place.index, board
        self.ours = not dist.is_initialized()
        self.members = [Member(*each) for each in self.board.everyones("here", Member.here(asked))]
        self.me = self.members[place.index]
        refuse_differences([member.asked for member in self.members])
        self.devices = self._devices(asked["device"])
        if self.ours:
            self._connect()
        own = offsets(self.index, [member.machine for member in self.members])
        found = self.board.of_rank_0("offsets", own)
        self.offsets = {name: Offset(*each) for name, each in found.items()}

    @property
    def mates(self) -> dict[int, list]:
        """Other ranks whose processes this one can see: rank -> [host, pid, start]."""
        return {
            rank: m.process
            for rank, m in enumerate(self.members)
            if m.machine == self.me.machine and rank != self.index
        }

    def hosts(self) -> list[dict]:
        """What the run's settings say of its machines, one entry each."""
        told = []
        for name, ranks in self._machines().items():
            first, offset = self.members[ranks[0]], self.offsets[name]
            told.append(
                {
                    "name": first.host,
                    "ranks": ranks,
                    "cores": first.cores,
                    "gpus": first.gpus,
                    "offset_ns": offset.ns,
                    "error_s": offset.error_ns / 1e9,
                }
            )
        return told

    def agree(self, prepare) -> Job:
        """Rank 0's job, which `prepare(hosts, devices)` makes there, with this machine's zero.
        Every rank sees its directory."""
        own = note(prepare(self.hosts(), self.devices)) if self.index == 0 else None
        job = of_note(self.board.of_rank_0("job", own))
        try:
            self._refuse_unseen(job)
        except BaseException:
            if self.index == 0:  # nothing has run: leave nothing
                forget(Path(job.directory))
            raise
        return replace(job, zero_ns=job.zero_ns + self.offsets[self.me.machine].ns)

    # -- one by one --------------------------------------------------------------------------------

    def _machines(self) -> dict[str, list[int]]:
        """The ranks on each machine."""
        found: dict[str, list[int]] = {}
        for rank, member in enumerate(self.members):
            found.setdefault(member.machine, []).append(rank)
        return found

    def _devices(self, device: str) -> Devices:
        """As devices.py chooses for all machines, in the order of the ranks."""
        machines = list(self._machines().values())
        chosen = choose(
            [
                Node(len(ranks), min(self.members[rank].gpus for rank in ranks))
                for ranks in machines
            ],
            device,
            nccl_here(),
        )
        by_rank = dict(zip((rank for ranks in machines for rank in ranks), chosen.of, strict=True))
        return chosen._replace(of=tuple(by_rank[rank] for rank in range(self.place.ranks)))

    def _connect(self) -> None:
        name = border.interface()
        if name is None:
            elsewhere = [m.address for m in self.members if m.machine != self.me.machine]
            try:
                name = peers.between(self.me.address, elsewhere) if elsewhere else border.LOOPBACK
            except peers.Unreachable:
                name = None
            if name:
                border.use_interface(name)
        where = (
            f"Rank {self.index} on {self.me.host} cannot connect to the other ranks over"
            f" {name or 'its network'}"
        )
        mend = (
            "let the nodes reach each other on all ports, or set GLOO_SOCKET_IFNAME on each node to"
            " the interface that `bigtrain doctor --peer` names there."
        )
        own, failed = self.board.clone(), []  # a store serves one caller at a time
        store = dist.PrefixStore("gloo", own.store)

        # in a thread, since no call of gloo's can be interrupted where a rank ends or does not come
        def connect():
            try:
                dist.init_process_group(
                    self.devices.backend,
                    store=store,
                    rank=self.index,
                    world_size=self.place.ranks,
                    timeout=timedelta(days=7),
                )
                own.post(f"connected {self.index}", True)
            except (RuntimeError, ValueError) as error:
                failed.append(str(error).splitlines()[0][:160])

        connecting = threading.Thread(target=connect, daemon=True)
        connecting.start()
        self.board.wait(
            lambda: not connecting.is_alive(),
            lambda rank: self.board.peek(f"connected {rank}"),
            CONNECT_S,
            mend,
        )
        if failed:
            raise Impossible(f"{where} ({failed[0]}): {mend}")

    def _refuse_unseen(self, job) -> None:
        path, until = Path(job.directory) / "settings.json", time.monotonic() + SEEN_S
        while not (seen := readable(path)) and time.monotonic() < until:
            time.sleep(0.1)  # a shared disk may take a moment to show a new file
        blind = [rank for rank, sees in enumerate(self.board.everyones("sees", seen)) if not sees]
        if blind:
            raise Impossible(
                f"Rank {blind[0]} on {self.members[blind[0]].host} does not see the run directory"
                f" {job.directory} that rank 0 on {self.members[0].host} made: choose a --directory"
                " on a disk that all nodes share."
            )


def refuse_differences(asked: list[dict]) -> None:
    """Impossible, naming a rank and what differs, where the ranks were not asked for the same; the
    experiment's "settings" one by one."""
    told = [
        {
            **{("launch", name): value for name, value in own.items() if name != "settings"},
            **{("settings", name): value for name, value in own.get("settings", {}).items()},
        }
        for own in asked
    ]
    for rank, own in enumerate(told):
        for key in told[0] | own:
            if own.get(key) != told[0].get(key):
                raise Impossible(
                    f"Rank {rank} was started with {key[1].replace('_', '-')} {own.get(key)!r} and"
                    f" rank 0 with {told[0].get(key)!r}: give every node the same command and the"
                    " same versions."
                )


def readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


# -- what ranks tell each other ----------------------------------------------------------------


def digest(program) -> str:
    """Of a program's code, the same on all ranks: its own, and the files that define it where they
    are known. Values that it was made with do not count: the settings are compared."""
    while isinstance(program, partial):
        program = program.func
    function = getattr(program, "__func__", program)
    found = hashlib.sha256(repr(compiled(getattr(function, "__code__", None))).encode())
    owner = type(getattr(program, "__self__", program))
    for name in sorted({function.__module__, owner.__module__} - {"builtins"}):
        with suppress(OSError, TypeError, KeyError):  # typed in a shell, or made by exec
            found.update(inspect.getsource(sys.modules[name]).encode())
    return found.hexdigest()[:16]


def compiled(value):
    """What a function's code does, without where it stands, for repr."""
    if isinstance(value, CodeType):
        constants = [compiled(each) for each in value.co_consts]
        return value.co_name, value.co_code, value.co_names, constants
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


# A job as a note on the board: {name of a value's kind: its parts}. Numbers stay exact.
KINDS = {  # name -> (kind, value -> parts, parts -> value); of several that a value is, the first
    **{
        kind.__name__: (
            kind,
            lambda value: [getattr(value, field.name) for field in fields(value)],
            lambda parts, kind=kind: kind(*parts),
        )
        for kind in (Cost, Fault, Job)
    },
    **{
        kind.__name__: (kind, tuple, lambda parts, kind=kind: kind(*parts))
        for kind in (Action, Link)
    },
    "Fraction": (Fraction, Fraction.as_integer_ratio, lambda parts: Fraction(*parts)),
    "Mesh": (Mesh, lambda mesh: mesh.axes, lambda parts: Mesh(**dict(parts))),
    "dict": (Mapping, lambda mapping: mapping.items(), dict),
    "tuple": (tuple, tuple, tuple),
}


def note(value):
    """A job, or a value in it, as JSON holds it. Impossible where it is none of KINDS."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [note(each) for each in value]
    for name, (kind, parts, _) in KINDS.items():
        if isinstance(value, kind):
            return {name: [note(part) for part in parts(value)]}
    if hasattr(value, "item"):  # a number of numpy's or torch's
        return note(value.item())
    raise Impossible(
        f"The cost holds {value!r}, which cannot travel to other ranks: let it hold numbers."
    )


def of_note(told):
    """The value that `note` made this of."""
    if isinstance(told, list):
        return [of_note(each) for each in told]
    if not isinstance(told, dict):
        return told
    ((name, parts),) = told.items()
    return KINDS[name][2]([of_note(part) for part in parts])
