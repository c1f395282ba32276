"""How far the clocks of several machines are apart at a run's start, and how well that is known.

Rank 0 asks at t0, the other machine hears and answers at t, rank 0 hears at t3, each on its own
clock:

    offset = t - (t0 + t3) / 2        error = (t3 - t0) / 2

The offset is right to half the round trip, whatever share of it each way takes, so the smallest
round trip of several counts (Cristian, Probabilistic clock synchronization, 1989). A message then
never seems to arrive before it was sent, unless it was quicker than the quickest of these.
"""

import os
import platform
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from ...core.words import duration

ROUNDS = 25


class Offset(NamedTuple):
    """`ns` that a machine's monotonic clock is ahead of rank 0's, right to `error_ns`."""

    ns: int
    error_ns: int


def offset(times) -> Offset:
    """The best estimate from the (t0, t, t3) of several questions."""
    t0, t, t3 = min(times, key=lambda each: each[2] - each[0])
    return Offset(t - (t0 + t3) // 2, (t3 - t0 + 1) // 2)


def machine() -> str:
    """Name this machine: equal in two processes that read the same monotonic clock, share a network
    and see each other's processes."""
    try:
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("time", "net", "pid")]
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8") + "".join(spaces)
    except OSError:  # no Linux
        return platform.node()


def offsets(index: int, machines: list[str]) -> dict[str, Offset]:
    """Machine -> its offset, on rank 0; elsewhere {}. Every rank calls this; the first rank of each
    other machine is asked. `machines`: each rank's machine, by rank."""
    found = {machines[0]: Offset(0, 0)}
    for name in dict.fromkeys(machines[1:]):
        rank = machines.index(name)
        if rank and index == 0:
            found[name] = offset([ask(rank) for _ in range(ROUNDS)])
        elif rank and rank == index:
            answer()
    return found if index == 0 else {}


def ask(rank: int) -> tuple[int, int, int]:
    heard, t0 = torch.zeros(1, dtype=torch.int64), time.monotonic_ns()
    dist.send(heard, rank)
    dist.recv(heard, rank)
    return t0, int(heard), time.monotonic_ns()


def answer() -> None:
    for _ in range(ROUNDS):
        dist.recv(torch.zeros(1, dtype=torch.int64), 0)
        dist.send(torch.tensor([time.monotonic_ns()]), 0)


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
