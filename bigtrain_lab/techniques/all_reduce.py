"""All-reduce on a ring: every rank gets the sum, and no link carries more than another.

    x = sum_r x_r      rank 0 -> 1 -> ... -> N-1 -> 0: N-1 turns add, N-1 turns copy (pipelined_ring.py)

Each chunk of the tensor goes around the ring once and gathers what all ranks have; then it goes
around again as it is. A chunk travels in parts: while one is added, the next is on its way.

Time: 2 (N-1) alpha + 2 (N-1)/N n beta for n bytes, of which only the latency grows with N. Memory:
AHEAD parts. Error: N-1 additions an element; all ranks hold the same bits, since each sum is made
once and copied.
Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms, section 3; Gibiansky 2017.
"""

from collections import deque

import torch
from torch import Tensor

from ..pipelined_ring import Part, pipelined_ring
from ..plan import Recv, Send
from ..runtime.group import Group, Handle
from ..runtime.message import Shape, as_bytes
from .guards import all_reduce as guard

AHEAD = 2  # parts that are received while one is added


@torch.no_grad()
def ring_all_reduce(tensor: Tensor, group=None, op: str = "sum", name: str = "all_reduce") -> Tensor:
    """Replace the tensor on every rank by the sum, or mean, over the ranks; returns it. Ranks whose
    tensors differ in shape or dtype are told so, all of them. `name` is that of its messages."""
    group = Group.of(group)
    guard.refuse(tensor, op)
    if group.size == 1:
        return tensor
    agreement = group.agreement(f"{op} of {Shape.of(tensor)} in {name}", name)
    flat = tensor.detach().reshape(-1).contiguous()  # a copy where it is not contiguous
    first, then = pipelined_ring(group.rank, group.size, flat.numel(), flat.itemsize, name)
    receives = [part for part in then if isinstance(part.op, Recv)]
    room = flat.new_empty(AHEAD, max((part.stop - part.start for part in receives), default=0))
    coming: deque[tuple[Tensor, Handle]] = deque()

    def send(part: Part) -> None:
        own = as_bytes(flat[part.start:part.stop])
        group.isend(own, *part.op, agreement.site, agreed=True)

    def post_receive(number: int) -> None:
        if number < len(receives):
            op, start, stop, _ = receives[number]
            to_add = op.message.kind == "reduce"
            into = room[number % AHEAD, :stop - start] if to_add else flat[start:stop]
            handle = group.irecv(as_bytes(into), *op, agreement.site, agreed=True)
            coming.append((into, handle))

    for number in range(AHEAD):
        post_receive(number)
    for part in first:
        send(part)
    guard.refuse_different(group, agreement.differing())
    received = 0
    for part in then:
        if isinstance(part.op, Send):
            send(part)
            continue
        into, handle = coming.popleft()
        handle.wait()
        own = flat[part.start:part.stop]
        if part.op.message.kind == "reduce":
            own.add_(into)
        if part.whole and op == "mean":
            own.div_(group.size)
        post_receive(received + AHEAD)
        received += 1
    group.finish()
    return tensor if flat.data_ptr() == tensor.data_ptr() else tensor.copy_(flat.view(tensor.shape))
