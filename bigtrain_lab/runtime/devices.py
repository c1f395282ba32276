"""Which device each rank computes on, and what carries its messages, by what is there; a pure rule
and its reason.

Messages are taken in any order, which NCCL does not offer: those of GPU tensors go over the host,
through gloo. No GPU was there to test this on, so a launch takes the CPU unless it is asked for
another device.

    as many GPUs as ranks on every node     one GPU a rank; NCCL for collectives of GPU tensors,
                                            gloo for all else
    fewer GPUs, on some node                its ranks share them; gloo alone, since NCCL wants a GPU
                                            for each rank
    no GPU on some node, or not asked for   the CPU and gloo on all nodes: a job must not compute on
                                            two kinds of device
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed

from ..core import refuse
from ..core.impossible import refuse_unknown

CHOICES = ("cpu", "auto", "cuda")
NCCL, GLOO = "cpu:gloo,cuda:nccl", "gloo"


class Node(NamedTuple):
    """A machine: its ranks, and the GPUs that they see."""

    ranks: int
    gpus: int


def visible() -> int:
    """GPUs that this process sees."""
    return torch.cuda.device_count()


def nccl_here() -> bool:
    return torch.distributed.is_nccl_available()


class Devices(NamedTuple):
    """A torch device for each rank, torch's words for the backend, and why."""

    of: tuple[str, ...]
    backend: str
    why: str


def choose(nodes: Sequence[Node], device: str = "auto", nccl: bool = True) -> Devices:
    """The devices of all ranks, node after node. `nccl`: whether torch's build has it. Impossible
    where GPUs are insisted on and a node has none."""
    refuse_unknown("device", device, CHOICES)
    ranks = sum(node.ranks for node in nodes)
    bare = [number for number, node in enumerate(nodes) if not node.gpus]
    where = f" on node {bare[0]}" if bare and len(nodes) > 1 else ""
    refuse(
        (
            device == "cuda" and bare,
            f"No GPU is visible{where}: choose device cpu or auto, or let this process see one"
            " (CUDA_VISIBLE_DEVICES, torch for CUDA).",
        )
    )
    if device == "cpu" or bare:
        why = "as asked" if device == "cpu" else f"no GPU is visible{where}"
        return Devices(("cpu",) * ranks, GLOO, f"CPU and gloo: {why}")
    placed = tuple(
        f"cuda:{rank * node.gpus // node.ranks if node.ranks > node.gpus else rank}"
        for node in nodes
        for rank in range(node.ranks)
    )
    crowded = next((node for node in nodes if node.ranks > node.gpus), None)
    if crowded:
        return Devices(
            placed,
            GLOO,
            f"{crowded.ranks} ranks share {crowded.gpus} GPU{'s' * (crowded.gpus > 1)} through"
            " gloo: NCCL wants one for each rank",
        )
    if not nccl:
        return Devices(placed, GLOO, "one GPU a rank through gloo: this build of torch has no NCCL")
    return Devices(
        placed, NCCL, "one GPU a rank: NCCL for collectives, gloo over the host for messages"
    )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """This process computes with so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def built(make: Callable[[], torch.nn.Module], device: torch.device) -> torch.nn.Module:
    """make() on the device. Weights are drawn on the CPU, so that all devices start from the same;
    on meta none is drawn."""
    if device.type != "meta":
        return make().to(device)
    with device:
        return make()
