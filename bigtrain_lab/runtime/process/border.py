"""The border to the operating system's environment: the only file that reads or sets environment
variables."""

import os
import sys
from typing import NamedTuple

from ...core import Impossible
from ..torchrun.peers import Peer

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class Place(NamedTuple):
    """This process as one rank of a job that something else (torchrun, also under Slurm or
    Kubernetes) started."""

    index: int
    ranks: int
    nodes: int = 1
    restart: int = 0
    agent: bool = False  # whether torchrun itself started it, and ends it with the others
    hosts: bool = False  # whether it opens the store at which all meet


def place_given() -> Place | None:
    """The place that torchrun gave to this process, or None when nobody did."""
    try:
        index, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        nodes, restart = (
            int(os.environ.get("GROUP_WORLD_SIZE", 1)),
            int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
        )
    except (KeyError, ValueError):
        return None
    if "MASTER_ADDR" not in os.environ or not os.environ.get("MASTER_PORT", "").isdigit():
        return None
    hosts = index == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return Place(index, ranks, nodes, restart, "TORCHELASTIC_RUN_ID" in os.environ, hosts)


def speaks() -> bool:
    """Whether this process warns and shows progress: of torchrun's ranks, the first of each
    machine."""
    place = place_given()
    return not (place and place.agent) or os.environ.get("LOCAL_RANK") == "0"


def meeting_point() -> Peer:
    """Where the ranks of torchrun meet."""
    return Peer(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def refuse_other_size(place: Place, ranks: int) -> None:
    """Impossible, with the command that works, where torchrun started another number of ranks than
    asked for."""
    if place.ranks == ranks:
        return
    here, nodes = f"torchrun --nproc-per-node={ranks} on one node", place.nodes
    if nodes == 1:
        words = f"use {here}"
    elif ranks % nodes == 0:
        words = (
            f"use torchrun --nnodes={nodes} --nproc-per-node={ranks // nodes} on each of the"
            f" {nodes} nodes"
        )
    else:
        words = f"{ranks} ranks cannot be shared out evenly over {nodes} nodes, so use {here}"
    raise Impossible(
        f"This asks for {ranks} ranks, but torchrun started"
        f" {place.ranks}{f' on {nodes} nodes' if nodes > 1 else ''}: {words}, or ask for"
        f" {place.ranks} ranks."
    )


def set_local(threads: int) -> None:
    """Keep a rank on this machine: gloo and NCCL talk over loopback only, and threads do not fight
    over cores."""
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    os.environ["OMP_NUM_THREADS"] = str(threads)


def interface() -> str | None:
    """The network interface that gloo was told to use."""
    return os.environ.get("GLOO_SOCKET_IFNAME")


def use_interface(name: str) -> None:
    """Let gloo use this network interface."""
    os.environ["GLOO_SOCKET_IFNAME"] = name


def cache_directory() -> str:
    """Where this user's programs keep what can be made again."""
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Caches")
    return os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
