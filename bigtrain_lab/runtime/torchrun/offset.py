"""How far the clocks of several machines are apart, and how well that is known.

Rank 0 asks at t0, the other machine hears at t1 and answers at t2, rank 0 hears at t3, each on its
own clock:

    offset = ((t1 - t0) + (t2 - t3)) / 2        round trip = (t3 - t0) - (t2 - t1)

The offset is right to half the round trip, whatever share of it each way takes, so the smallest
round trip of several counts (Cristian, Probabilistic clock synchronization, 1989; RFC 5905, section
8). A message then never seems to arrive before it was sent, unless it was quicker than the quickest
of these.

Clocks drift: quartz by some microseconds a second, and a clock that is being set right over the
network by up to 500 us a second (RFC 5905, appendix A: MAXFREQ). The offset is that of a run's
start; asked again at its end, it says by how much a clock has moved at most, and no time is changed
by that.
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
    """The best estimate from the (t0, t1, t2, t3) of several questions."""
    t0, t1, t2, t3 = min(times, key=lambda t: (t[3] - t[0]) - (t[2] - t[1]))
    return Offset(
        ((t1 - t0) + (t2 - t3)) // 2, ((t3 - t0) - (t2 - t1) + 1) // 2 + 1
    )  # + 1: what the halves may lose


def namespace(kind: str) -> str:
    """The same in two processes exactly where they read the same monotonic clock ("time"), and
    share a network ("net") or a table of processes ("pid") too."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return boot + os.readlink("/proc/self/ns/time") + os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # no Linux
        return platform.node()


def beyond_the_wall() -> int:
    """What this machine's calendar is ahead of its monotonic clock, in ns: the reading of several
    that took least."""
    readings = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(10)]
    before, calendar, after = min(readings, key=lambda r: r[2] - r[0])
    return calendar - (before + after) // 2


def offsets(index: int, clocks: list[str]) -> dict[str, Offset]:
    """Clock -> its offset, on rank 0; elsewhere {}. Every rank calls this; the first rank of each
    other clock is asked. `clocks`: each rank's clock, by rank."""
    asked = {clock: clocks.index(clock) for clock in clocks if clock != clocks[0]}
    if index == 0:
        return {clocks[0]: Offset(0, 0)} | {
            clock: offset(ask(rank)) for clock, rank in asked.items()
        }
    if asked.get(clocks[index]) == index:
        answer()
    return {}


def ask(rank: int) -> list[tuple[int, int, int, int]]:
    times, heard = [], torch.zeros(2, dtype=torch.int64)
    for _ in range(ROUNDS):
        t0 = time.monotonic_ns()
        dist.send(heard, rank)
        dist.recv(heard, rank)
        times.append((t0, *heard.tolist(), time.monotonic_ns()))
    return times


def answer() -> None:
    message = torch.zeros(2, dtype=torch.int64)
    for _ in range(ROUNDS):
        dist.recv(message, 0)
        t1 = time.monotonic_ns()
        message[0], message[1] = t1, time.monotonic_ns()
        dist.send(message, 0)


def told(hosts: list[dict]) -> str:
    """What a run's settings say of its machines' clocks, in one sentence; "" where there is one
    clock."""
    others = [host for host in hosts if host["error_s"]]
    if not others:
        return ""
    parts = []
    for host in others:
        ahead, error = abs(host["ahead_s"]), duration(host["error_s"], "s")
        way = "behind" if host["ahead_s"] < 0 else "ahead of"
        apart = (
            f"agrees with rank 0's to {error}"
            if ahead < host["error_s"]
            else f"is {duration(ahead, 's')} {way} rank 0's, known to {error}"
        )
        parts.append(f"that of rank {host['ranks'][0]} ({host['name']}) {apart}")
    moved = [
        host["moved_s"] for host in others if "moved_s" in host
    ]  # asked at the end of a run that was done
    drift = (
        f" By the end they had moved apart by {duration(max(moved), 's')} at most." if moved else ""
    )
    return (
        f"Clocks of {len(hosts)} machines: {'; '.join(parts)}. Measured times are corrected by what"
        f" was found at the start.{drift}"
    )
