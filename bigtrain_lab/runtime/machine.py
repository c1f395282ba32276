"""What this process runs on: cores, and versions of what computes."""

import os
import platform
from functools import lru_cache
from importlib.metadata import version


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict:
    """What ranks on several machines must have alike."""
    return {"version of " + name: version(name) for name in ("bigtrain_lab", "torch")}


@lru_cache(maxsize=1)
def environment() -> dict:
    """What the run ran on."""
    packages = {name: version(name) for name in ("torch", "numpy", "pydantic", "cloudpickle")}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": cores(),
        "packages": packages,
    }
