"""The border to the operating system's environment: the only file that reads or sets environment variables."""

import os
import sys
from typing import NamedTuple

from ..core import Impossible


class Place(NamedTuple):
    """This process as one rank of a job that something else (torchrun, Slurm) started."""

    index: int
    ranks: int


def place_given() -> Place | None:
    """The place that torchrun gave to this process, or None when nobody did."""
    try:
        index, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return Place(index, ranks) if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ else None


def refuse_other_size(place: Place, ranks: int) -> None:
    """Impossible, with the command that works, where torchrun started another number of ranks than asked for."""
    if place.ranks != ranks:
        raise Impossible(f"This asks for {ranks} ranks, but torchrun started {place.ranks}: "
                         f"use torchrun --nproc-per-node={ranks} on one node, or ask for {place.ranks} ranks.")


def set_local(threads: int) -> None:
    """Keep a rank on this machine: gloo talks over loopback only, and threads do not fight over cores."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    os.environ["OMP_NUM_THREADS"] = str(threads)


def cache_directory() -> str:
    """Where this user's programs keep what can be made again."""
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Caches")
    return os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
