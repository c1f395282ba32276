"""What this process runs on: cores, and versions of what computes."""

import json
import os
import platform
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from ..core import Impossible, write_whole


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict:
    """What ranks on several machines must have alike."""
    return {"version of " + name: version(name) for name in ("bigtrain_lab", "torch")}


def keep(path: Path, measured: dict) -> None:
    """Keep what was measured for the next time; where there is nowhere to, it is measured again."""
    with suppress(OSError, Impossible):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(measured, indent=1))


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
