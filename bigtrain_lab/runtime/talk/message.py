"""What travels between two ranks: a description once a site, then data, under the clock with a
header in front.

    description   16 x int64: dtype, number of dimensions, the dimensions
                  once a (peer, site, direction)
    header        3 x int64: issue, stamp (ticks), wall (ns)       in front of each modelled message
    data          the tensor's bytes

A site is a place in the program that always sends one shape: the receiver allocates from its
description, and the sender refuses a tensor of another shape, so a mismatch is a sentence and not a
hang. Each (site, name, tag) is a channel of its own, first in first out: messages of different
names may be taken in any order.
"""

import struct
import threading
import zlib
from collections import deque
from math import prod

import torch

from ...core import refuse

DTYPES = tuple(
    getattr(torch, name)
    for name in (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
    )
)
HEADER = struct.Struct("<qqq")
DIMENSIONS = 14


class Shape(tuple):
    """(dtype, dimensions): what a site's messages look like."""

    @classmethod
    def of(cls, like) -> "Shape":
        """From a tensor, or from a pair (dtype, dimensions) in either order."""
        if isinstance(like, torch.Tensor):
            return cls((like.dtype, tuple(like.shape)))
        dtype, dimensions = like if isinstance(like[0], torch.dtype) else (like[1], like[0])
        return cls((dtype, tuple(dimensions)))

    def __str__(self) -> str:
        return f"{str(self[0]).removeprefix('torch.')} of shape {self[1]}"

    @property
    def nbytes(self) -> int:
        return self[0].itemsize * prod(self[1])

    def empty(self) -> torch.Tensor:
        return torch.empty(self[1], dtype=self[0])

    def encode(self) -> torch.Tensor:
        dtype, dimensions = self
        refuse(
            (
                dtype not in DTYPES or len(dimensions) > DIMENSIONS,
                f"Cannot send {self}: send at most {DIMENSIONS} dimensions of a common dtype.",
            )
        )
        return torch.tensor(
            [
                DTYPES.index(dtype),
                len(dimensions),
                *dimensions,
                *[0] * (DIMENSIONS - len(dimensions)),
            ],
            dtype=torch.int64,
        )

    @classmethod
    def decode(cls, code: torch.Tensor) -> "Shape":
        dtype, count, *dimensions = code.tolist()
        return cls((DTYPES[dtype], tuple(dimensions[:count])))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The data as flat uint8: a view of a contiguous tensor, also of one element with an odd
    stride."""
    dense = tensor.detach().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def pack(tensor: torch.Tensor, issue: int, stamp: int, wall: int) -> torch.Tensor:
    """Header and data in one buffer: a second message would double the wall time of small ones."""
    data = as_bytes(tensor)
    wire = torch.empty(HEADER.size + data.numel(), dtype=torch.uint8)
    HEADER.pack_into(wire.numpy(), 0, issue, stamp, wall)
    wire[HEADER.size :] = data
    return wire


def unpack(wire: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, int, int, int]:
    """(tensor, issue, stamp, wall). The tensor owns its storage, so that a ledger counts its bytes
    and no header's."""
    tensor = shape.empty()
    as_bytes(tensor).copy_(wire[HEADER.size :])
    return tensor, *HEADER.unpack_from(wire.numpy(), 0)


def channel(site: str, name: str, tag: int) -> int:
    """The transport's tag of a channel: the same number on both sides."""
    return zlib.crc32(f"{site}|{name}|{tag}".encode()) & 0x7FFFFFFF


class Outbox:
    """Keeps every send and its buffer until it is done: gloo's send is a rendezvous and reads the
    buffer late.

    A backend's handle does not say whether it is done, only waits; so past LIMIT outstanding sends
    a thread waits for them in order and lets go of their buffers.
    """

    LIMIT = 64

    def __init__(self):
        self._pending: deque = deque()
        self._forgotten: list = []
        self._thread: threading.Thread | None = None
        self._errors: list[RuntimeError] = []

    def add(self, work, buffer) -> None:
        self._pending.append((work, buffer))
        if len(self._pending) >= self.LIMIT and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self._take, args=(self.LIMIT // 2,), daemon=True)
            self._thread.start()

    def _take(self, count: int) -> None:
        for _ in range(count):
            try:
                self._pending[0][0].wait()
            except RuntimeError as error:
                self._errors.append(error)
                return
            self._pending.popleft()

    def forget(self) -> None:
        """Wait no more for what was sent so far. Its buffers stay: a connection that was told of
        one stands still where it is gone."""
        if self._thread:
            self._thread.join()
        self._forgotten += self._pending
        self._pending.clear()

    def finish(self) -> None:
        """Return when everything sent has been taken; RuntimeError where a peer is gone."""
        if self._thread:
            self._thread.join()
        if self._errors:
            raise self._errors[0]
        while self._pending:
            self._pending[0][0].wait()
            self._pending.popleft()
