"""This machine as a hardware profile, measured in about two seconds and kept for the next time.

FLOP/s a dtype      2 n^3 of the fastest of several n x n matmuls on one thread
                    (a rank on a CPU has one thread)
memory bandwidth    bytes read and written by the fastest of several copies of 64 MB
launch              the fastest of many products of two numbers that autograd records
alpha, beta         half a round trip of 1 byte, and of 4 MB less alpha, between two real ranks over
                    gloo's loopback
"""

import json
import platform
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter

from ..core import Hardware, Impossible, Wire, refuse
from ..core.later import later
from .machine import keep, kept
from .process.border import place_given

with later():
    import torch

    from . import devices

NAME, VERSION = "this-machine", 2
LOOPBACK_S = 60  # for two ranks to meet, and to measure
MATMUL, COPY_BYTES, MESSAGE_BYTES, ROUNDS = 384, 64 * 2**20, 4 * 2**20, 30


def this_machine(measure: bool = True) -> Hardware | None:
    """The profile "this-machine": the one that was kept, else measured now; with measure=False the
    kept one or None.

    Impossible under torchrun where none was kept: its ranks cannot launch the two that would
    measure.
    """
    found = kept(NAME)
    if key().items() <= found.items():
        with suppress(ValueError, KeyError, TypeError):  # somebody has changed it: measure again
            return hardware_of(found)
    if not measure:
        return None
    refuse(
        (
            place_given(),
            "This machine has not been measured, and ranks of torchrun cannot do it: "
            "run `bigtrain doctor` on it once, or choose another hardware profile.",
        )
    )
    return calibrate()


def key() -> dict:
    """What a kept profile is good for: a home directory may be shared by several machines."""
    return {"version": VERSION, "torch": version("torch"), "machine": platform.node()}


def calibrate() -> Hardware:
    """Measure this machine now, and keep the profile in place of an earlier one."""
    found = {**key(), **measured()}
    keep(NAME, found)
    return hardware_of(found)


def hardware_of(found: dict) -> Hardware:
    """The profile that the measured numbers make."""
    one = f"measured: {found['when']} with torch {found['torch']}"
    told = {
        "flops_per_s": f"best of several {MATMUL} x {MATMUL} matmuls on one thread",
        "memory_bytes": "told by the operating system",
        "memory_bytes_per_s": f"best copy of {COPY_BYTES >> 20} MB on one thread",
        "launch_s": "best product of two numbers, recorded for a backward",
        "inside.alpha_s": "half a round trip of 1 byte between two ranks",
        "inside.bytes_per_s": f"half a round trip of {MESSAGE_BYTES >> 20} MB between two ranks",
    }
    return Hardware(
        NAME,
        flops_per_s=found["flops_per_s"],
        memory_bytes=found["memory_bytes"],
        memory_bytes_per_s=found["memory_bytes_per_s"],
        launch_s=found["launch_s"],
        launches_ahead=False,
        inside=Wire("gloo over loopback", found["alpha_s"], found["bytes_per_s"]),
        node_size=1024,
        sources={name: f"{one}, {how}" for name, how in told.items()} | {"when": found["when"]},
    )


def remembered(values: dict) -> Hardware:
    """The profile that dataclasses.asdict made these values of, as a run keeps it; Impossible where
    they are damaged."""
    try:
        return TypeAdapter(Hardware).validate_json(json.dumps(values), strict=True)
    except (TypeError, ValueError) as error:
        raise Impossible(
            "what the run kept of its machine cannot be read: run it again."
        ) from error


def measured() -> dict:
    """Plain numbers, in SI units."""
    import psutil

    alpha_s, bytes_per_s = loopback()
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "memory_bytes": psutil.virtual_memory().total,
        "alpha_s": alpha_s,
        "bytes_per_s": bytes_per_s,
        **speeds(),
    }


def loopback() -> tuple[float, float]:
    """(alpha in seconds, bytes a second) between two ranks. RankFailed or TimeoutError where they
    cannot reach each other."""
    from .process.launch import launch

    with tempfile.TemporaryDirectory() as directory:
        run = launch(
            round_trips, 2, directory=Path(directory) / "run", record=False, name="calibrate"
        )
        try:
            run.wait(LOOPBACK_S)
        finally:
            run.stop()
        result = run.result
    alpha = float(result["small"]) / 2
    return alpha, MESSAGE_BYTES / max(float(result["large"]) / 2 - alpha, 1e-9)


def round_trips(rank) -> dict:
    """Times of the fastest round trips, on rank 0."""
    group, other, times = rank.group(), 1 - rank.index, {}
    for site, size in (("small", 1), ("large", MESSAGE_BYTES)):
        message, best = torch.zeros(size, dtype=torch.uint8), float("inf")
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            if rank.index == 0:
                group.isend(message, other, site=site)
            message = group.recv(other, site=site)
            if rank.index == 1:
                group.isend(message, other, site=site)
            best = min(best, time.perf_counter() - begin)
        group.finish()
        times[site] = best
    return times if rank.index == 0 else {}


def speeds() -> dict:
    """FLOP/s by dtype, memory bandwidth and launch time of one thread; the number of threads is
    restored."""
    with devices.threads(1):
        flops = {}
        for name in ("float32", "float64", "bfloat16"):
            a = torch.rand(MATMUL, MATMUL).to(getattr(torch, name))
            flops[name] = 2 * MATMUL**3 / fastest(lambda: a @ a, 0.3)  # noqa: B023  (called at once)
        source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
        target = torch.zeros_like(source)
        number = torch.ones((), requires_grad=True)
        return {
            "flops_per_s": flops,
            "launch_s": fastest(lambda: number * number, 0.1),
            "memory_bytes_per_s": 2 * COPY_BYTES / fastest(lambda: target.copy_(source), 0.3),
        }


def fastest(work, for_s: float) -> float:
    """Seconds of the fastest of the calls that this much time allows, at least three."""
    best, until, calls = float("inf"), time.perf_counter() + for_s, 0
    while calls < 3 or time.perf_counter() < until:
        begin = time.perf_counter()
        work()
        best, calls = min(best, time.perf_counter() - begin), calls + 1
    return best
