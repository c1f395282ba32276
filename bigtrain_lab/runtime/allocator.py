"""What CUDA's caching allocator held, from its own record: the peak in requested bytes, and what was alive then.

    held(t) = held at the start + allocated until t - freed until t         peak = max over t

A ledger's operators do not see what a kernel asks for while it works; the allocator does. So here every block counts, with
the bytes that were asked for (before rounding to 512). A block at whose address the ledger knows a storage has that one's
kind and name; any other is a workspace inside a kernel. cuBLAS keeps its workspaces, one a handle and stream, until the
process ends: blocks that no operator returned and nobody freed (so are tensors that the ledger never met). These are told
apart and are part of no sum.

Not tested on any GPU yet: only `replayed`, on records written by hand. Source: torch.cuda.memory._record_memory_history and
_snapshot (the formats TraceEntry and Block in their documentation).
"""

from typing import NamedTuple

import torch

from ..core import Alive

UNTESTED = "CUDA's allocator was asked for these bytes, workspaces included; this was not tested on any GPU yet"
LONGEST = 1_000_000  # entries that the allocator keeps


class Held(NamedTuple):
    """`alive`: address -> bytes at the peak, without `kept`: address -> bytes of what cuBLAS keeps and of what the ledger never met."""

    peak_bytes: int
    alive: dict[int, int]
    kept: dict[int, int]

    def told(self, known: dict[int, Alive], like: Alive) -> list[Alive]:
        """A row a block: the ledger's where it knows the address, else a workspace's at the same moment."""
        workspace = like._replace(
            kind="temporaries", name="workspace", shape=(), dtype="", module="", made=""
        )
        return [
            known.get(address, workspace)._replace(bytes=size)
            for address, size in self.alive.items()
        ]


class Record:
    """The allocator's record from `start` to `stop`. A record that somebody else has on ends with it."""

    def __init__(self, device: torch.device):
        self._device = device.index if device.index is not None else torch.cuda.current_device()

    def start(self) -> None:
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", max_entries=LONGEST, clear_history=True
        )

    def stop(self, returned: set[int]) -> Held:
        """`returned`: the addresses of all storages that operators returned or that were declared."""
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
        return replayed(snapshot, self._device, returned)


def replayed(snapshot: dict, device: int, returned: set[int]) -> Held:
    """The peak of one device from a snapshot with traces."""
    entries = [
        (e["addr"], e["size"] if e["action"] == "alloc" else 0, e["size"])
        for e in snapshot["device_traces"][device]
        if e["action"] in ("alloc", "free_requested")
    ]
    at_end = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"] if segment["device"] == device else ():
            if block["state"] == "active_allocated":
                at_end[address] = block["requested_size"]
            address += block["size"]
    last = {address: i for i, (address, after, _) in enumerate(entries) if after}
    kept = {address: size for address, size in at_end.items() if address not in returned}
    start = dict(at_end)
    for address, after, size in reversed(entries):
        if after:
            start.pop(address, None)
        else:
            start[address] = size
    start = {
        address: size for address, size in start.items() if address not in kept or address in last
    }
    changes = [
        (address, after)
        for i, (address, after, _) in enumerate(entries)
        if not (address in kept and last[address] == i)
    ]
    alive, total = dict(start), sum(start.values())
    peak, moment = total, 0
    for i, (address, after) in enumerate(changes, 1):
        total += after - alive.get(address, 0)
        alive[address] = after
        if total > peak:
            peak, moment = total, i
    alive = start | dict(changes[:moment])
    return Held(peak, {address: size for address, size in alive.items() if size}, kept)
