"""How far the clocks of several machines are apart at a run's start, and how well that is known.

All ranks meet several times, in a small all-reduce, which nobody leaves before all have come. With
the times at which rank 0 and another machine's rank came and went, each on its own clock:

    they came <= we went,  we came <= they went
    max(they came - we went)  <=  offset  <=  min(they went - we came)

The middle is right to half the difference (Cristian, Probabilistic clock synchronization, 1989, has
this for one question and its answer).
"""

import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from ...core.words import duration

MEETINGS = 25


class Offset(NamedTuple):
    """`ns` that a machine's monotonic clock is ahead of rank 0's, right to `error_ns`."""

    ns: int
    error_ns: int


def offset(ours: torch.Tensor, theirs: torch.Tensor) -> Offset:
    """The best estimate from when both came and went (K, 2), in the same K meetings."""
    least = int((theirs[:, 0] - ours[:, 1]).max())
    most = int((theirs[:, 1] - ours[:, 0]).min())
    return Offset((least + most) // 2, (most - least + 1) // 2)


def machine() -> str:
    """Name this machine: equal in two processes that read the same monotonic clock, share a network
    and see each other's processes."""
    try:
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("time", "net", "pid")]
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8") + "".join(spaces)
    except OSError:  # no Linux
        return platform.node()


def offsets(machines: list[str]) -> dict[str, Offset]:
    """Machine -> its offset. Every rank calls this. `machines`: each rank's machine, by rank."""
    if len(set(machines)) == 1:
        return {machines[0]: Offset(0, 0)}
    own = torch.empty(MEETINGS, 2, dtype=torch.int64)
    for meeting in own:
        meeting[0] = time.monotonic_ns()
        dist.all_reduce(torch.zeros(1))
        meeting[1] = time.monotonic_ns()
    every = [torch.empty_like(own) for _ in machines]
    dist.all_gather(every, own)
    return {name: offset(every[0], every[machines.index(name)]) for name in machines[1:]} | {
        machines[0]: Offset(0, 0)
    }


def told(hosts: list[dict]) -> str:
    """What a run's settings say of its machines' clocks, in one sentence; "" where there is one
    clock."""
    others = [
        f"that of rank {host['ranks'][0]} ({host['name']}) is known to"
        f" {duration(host['error_s'], 's')}"
        for host in hosts
        if host["error_s"]
    ]
    if not others:
        return ""
    return (
        f"Clocks of {len(hosts)} machines were compared at the start: {', '.join(others)}."
        " Measured times are corrected."
    )
