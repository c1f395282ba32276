"""What this process runs on: cores, versions of what computes, and what was measured before."""

import json
import os
import platform
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from ..core import Impossible, write_whole
from .process.border import cache_directory


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict:
    """What ranks on several machines must have alike."""
    return {"version of " + name: version(name) for name in ("bigtrain_lab", "torch")}


def kept_in(name: str) -> Path:
    return Path(cache_directory()) / "bigtrain_lab" / f"{name}.json"


def keep(name: str, measured: dict) -> None:
    """Keep what was measured for the next time; where there is nowhere to, it is measured again."""
    with suppress(OSError, Impossible):
        kept_in(name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept_in(name), json.dumps(measured, indent=1))


def kept(name: str) -> dict:
    """What was kept under this name; {} where nothing was, or it cannot be read."""
    try:
        found = json.loads(kept_in(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@lru_cache(maxsize=1)
def environment() -> dict:
    """What the run ran on."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": cores(),
        "packages": {name: version(name) for name in ("torch", "numpy", "pydantic", "cloudpickle")},
    }
