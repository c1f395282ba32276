"""A run on ranks that torchrun (or Slurm or Kubernetes through it) started; each runs its own
program.

meet        at torch's store (meeting.py); each rank says what it is
compare     all must have been asked the same: settings, ranks, versions, the program's code
connect     gloo, over the loopback where all share a network, else over the interface that reaches
            the others
clocks      how far each machine's clock is from rank 0's (offset.py)
directory   made by rank 0; every rank must see it, and keeps its own log there
the job     rank 0's, with its cost: what a machine has measured must not make its ranks differ.
            It lies in the directory; the program does not, each rank has its own
the end     told as under `launch`: by one rank in full, by the others in a sentence (lookout.py)
"""

import hashlib
import inspect
import pickle
import platform
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch.distributed as dist

from ...core import Impossible, grouped, refuse
from ..devices import Devices, Node, choose, nccl_here, threads, visible
from ..machine import cores
from ..process import border
from ..process.border import Place
from ..process.child import Job, work
from ..process.end import INTERRUPTED, JOB, UNWRITABLE, forget, within
from ..process.pulse import this_process
from ..record.kept import read_settings
from ..record.log import LogUnwritable
from ..record.run import RankFailed, Run
from . import peers
from .lookout import Lookout
from .meeting import Meeting
from .offset import machine, offsets

CONNECT_S = 120.0  # for gloo to connect ranks that are all there
WEEK_S = 7 * 24 * 3600.0  # for a message to come
SEEN_S = 30.0  # for a shared disk to show a new file


def run_in_place(place: Place, program, asked: dict, prepare, stall_s: float, informed=None) -> Run:
    """Run the program as rank `place.index` and return when all ranks have. RankFailed where one
    failed, Impossible where the ranks cannot work together.

    asked       what every rank must have been asked for alike
    prepare     hosts, devices -> Job: makes the run's directory; called by rank 0 alone
    informed    facts -> program, of a program that depends on what rank 0 has measured
    """
    meeting, ours = Meeting.of(place), not dist.is_initialized()
    try:
        meeting.post("here", Member.here({**asked, "program": digest(program)}))
        members = [Member(*each) for each in meeting.everyones("here")]
        refuse_differences([member.asked for member in members])
        devices = devices_of(members, asked["device"])
        if ours:
            connect(meeting, members, devices.backend)
        job = agree(meeting, members, devices, prepare)
    except BaseException as error:  # noqa: B902  (nobody may wait for this rank)
        meeting.refuse(error)
        raise

    def load():
        facts = read_settings(Path(job.directory))["settings"].get("facts")
        return informed(facts) if informed and facts else program

    mates = {
        rank: member.process
        for rank, member in enumerate(members)
        if member.machine == members[place.index].machine and rank != place.index
    }
    lookout = Lookout(place, meeting, mates, job, stall_s)
    try:
        with threads(job.threads):
            code = work(place.index, job, load)
    except LogUnwritable:
        code = UNWRITABLE
    end = lookout.finish(code)
    if end.diagnosis == INTERRUPTED:
        raise KeyboardInterrupt
    if end.state != "done":
        raise RankFailed(lookout.words())
    if ours:
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
        return cls(platform.node(), machine(), this_process(), address, cores(), visible(), asked)


def machines_of(members: list[Member]) -> dict[str, list[int]]:
    """The ranks on each machine."""
    return grouped((member.machine, rank) for rank, member in enumerate(members))


def devices_of(members: list[Member], device: str) -> Devices:
    """As devices.py chooses for all machines, in the order of the ranks."""
    machines = machines_of(members).values()
    chosen = choose(
        [Node(len(ranks), min(members[rank].gpus for rank in ranks)) for ranks in machines],
        device,
        nccl_here(),
    )
    by_rank = sorted(zip((rank for ranks in machines for rank in ranks), chosen.of, strict=True))
    return chosen._replace(of=tuple(device for _, device in by_rank))


def connect(meeting: Meeting, members: list[Member], backend: str) -> None:
    """Connect all ranks; Impossible where one cannot."""
    me, name = members[meeting.index], border.interface()
    if name is None:
        elsewhere = [m.address for m in members if m.machine != me.machine]
        with suppress(peers.Unreachable):
            name = peers.between(me.address, elsewhere) if elsewhere else border.LOOPBACK
        if name:
            border.use_interface(name)
    # Gloo waits as long to connect as for any message, so ranks first connect with a limit.
    for limit_s in (CONNECT_S, WEEK_S):
        try:
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(f"gloo {limit_s}", meeting.store),
                rank=meeting.index,
                world_size=meeting.size,
                timeout=timedelta(seconds=limit_s),
            )
        except (RuntimeError, ValueError) as error:
            with suppress(RuntimeError):  # the store has gone
                meeting.hear()
            raise Impossible(
                f"It cannot connect to the other ranks over {name or 'its network'}"
                f" ({str(error).splitlines()[0][:160]}): let the nodes reach each other on all"
                " ports, or set GLOO_SOCKET_IFNAME on each node to the interface that"
                " `bigtrain doctor --peer` names there."
            ) from error
        if limit_s == CONNECT_S:
            meeting.post("connected", True)
            meeting.everyones("connected")
            dist.destroy_process_group()


def agree(meeting: Meeting, members: list[Member], devices: Devices, prepare) -> Job:
    """Rank 0's job, which `prepare(hosts, devices)` makes there, with this machine's zero. It lies
    in its directory, which every rank sees, until all have read it."""
    found, own = offsets([member.machine for member in members]), None
    if meeting.index == 0:
        hosts = [
            {
                "name": members[ranks[0]].host,
                "ranks": ranks,
                "cores": members[ranks[0]].cores,
                "gpus": members[ranks[0]].gpus,
                "offset_ns": found[name].ns,
                "error_s": found[name].error_ns / 1e9,
            }
            for name, ranks in machines_of(members).items()
        ]
        job = prepare(hosts, devices)
        own = job.directory
        Path(own, JOB).write_bytes(pickle.dumps(job))
    meeting.post("job", own)
    directory = Path(meeting.everyones("job")[0])
    try:
        refuse(
            (
                not within(SEEN_S, (directory / JOB).is_file, 0.1),
                f"Rank {meeting.index} does not see the run directory {directory} that rank 0"
                f" on {members[0].host} made: choose a --directory on a disk that all nodes"
                " share.",
            )
        )
        job = pickle.loads((directory / JOB).read_bytes())
        meeting.post("sees", True)
        meeting.everyones("sees")
    except BaseException:
        if meeting.index == 0:  # nothing has run: leave nothing
            forget(directory)
        raise
    (directory / JOB).unlink(missing_ok=True)
    return replace(job, zero_ns=job.zero_ns + found[members[meeting.index].machine].ns)


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
    refuse(
        *(
            (
                own.get(key) != told[0].get(key),
                f"Rank {rank} was started with {key[1].replace('_', '-')} {own.get(key)!r} and"
                f" rank 0 with {told[0].get(key)!r}: give every node the same command and the"
                " same versions.",
            )
            for rank, own in enumerate(told)
            for key in told[0] | own
        )
    )


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
        return (
            value.co_name,
            value.co_code,
            value.co_names,
            [compiled(each) for each in value.co_consts],
        )
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
