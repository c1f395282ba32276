"""The plan with the least modelled step time that fits in the devices' memory.

Each case has its best plan, found by a search over all settings that bench.py offers, and room that
no faster plan fits in. What is compared comes from the lab's own prediction of both plans.
"""

from functools import cache

from bigtrain_lab.core import Impossible
from bigtrain_lab.core.peak import readings

from ....experiments.combined import Combined

NAME = "capstone"
MB, SAMPLES, NEAR_ENOUGH = 2**20, 64, 1.02
MODEL = {
    "layers": 6,
    "width": 512,
    "sequence": 128,
    "vocabulary": 1024,
    "hardware": "a100-nvlink",
    "ranks_per_node": 4,
    "steps": 2,
}
# devices and their memory in MB, give or take 3%; dp, pp, tp, micro-batches, ZeRO, recompute
BEST = {
    (8, 550): (8, 1, 1, 16, True, False),
    (8, 300): (8, 1, 1, 16, True, False),
    (8, 170): (4, 2, 1, 32, True, False),
    (8, 66): (1, 4, 2, 16, False, True),
    (4, 160): (1, 4, 1, 32, False, False),
}
SETTINGS = ("replicas", "pipeline", "slices", "micro_batches", "zero", "recompute")


def scenes(draw):
    for devices, about in BEST:
        for what, ends in (("a little less", (0.97, 1)), ("a little more", (1, 1.03))):
            memory = round(about * MB * draw.uniform(*ends))
            yield (
                f"{devices} devices of about {about} MB, {what}",
                {"devices": devices, "memory_bytes": memory},
            )


def shown(inputs: dict, plan: dict) -> dict:
    """Whether the plan can run, and fits; if so, by how much it is slower than the best."""
    devices, memory = inputs["devices"], inputs["memory_bytes"]
    try:
        step_s, peak, ranks = predicted(**plan)
    except Impossible as error:
        return {"what the lab says": str(error)}
    row = {"devices in use": ranks, "bytes above a device's memory": max(0, peak - memory)}
    if ranks == devices and peak <= memory:
        best_s, _, _ = predicted(**best(devices, memory), schedule="1f1b")
        slower = step_s / best_s
        row["percent slower than the best plan, where it is more than 2"] = (
            100 * (slower - 1) * (slower > NEAR_ENOUGH)
        )
    return row


def best(devices: int, memory: int) -> dict:
    case = min(BEST, key=lambda case: (case[0] != devices, abs(case[1] * MB - memory)))
    return dict(zip(SETTINGS, BEST[case]))


@cache
def predicted(**plan) -> tuple[float, int, int]:
    """Seconds of a step, bytes on the rank that holds most, and ranks; Impossible where the lab
    refuses."""
    lab = Combined(**MODEL, **plan, rows=SAMPLES // plan["micro_batches"])
    trace = lab.predict()
    most = max(read.bytes for rank in range(lab.ranks) for read in readings(trace, rank))
    return trace.step_time, most, lab.ranks
