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

from ..pipelined_ring import pipelined_ring
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
    flat = tensor.detach().reshape(-1).contiguous()  # a copy where it is not contiguous
    order = pipelined_ring(group.rank, group.size, flat.numel(), flat.itemsize, name)
    agreement = group.agreement(f"{op} of {Shape.of(tensor)} in {name}", name)

    room = deque(flat.new_empty(AHEAD, max((part.stop - part.start for part in order), default=0)))
    wanted = iter([part for part in order if isinstance(part.op, Recv)])
    coming: deque[tuple[Tensor, Handle]] = deque()

    def post_receive() -> None:
        if part := next(wanted, None):
            size = part.stop - part.start
            into = room[0][:size] if part.op.message.kind == "reduce" else flat[part.start:part.stop]
            room.rotate(-1)
            message = part.op.message
            handle = group.irecv(as_bytes(into), part.op.src, message, agreement.site, agreed=True)
            coming.append((into, handle))

    for _ in range(AHEAD):
        post_receive()
    for op_, start, stop, turn, whole in order:
        own = flat[start:stop]
        match op_:
            case Send(right, message):
                group.isend(as_bytes(own), right, message, agreement.site, agreed=True)
            case Recv():
                guard.refuse_different(group, agreement.after(turn + 1))
                received, handle = coming.popleft()
                handle.wait()
                if op_.message.kind == "reduce":
                    own.add_(received)
                if whole and op == "mean":
                    own.div_(group.size)
                post_receive()
    guard.refuse_different(group, agreement.after(group.size - 1))
    group.finish()
    return tensor if flat.data_ptr() == tensor.data_ptr() else tensor.copy_(flat.view(tensor.shape))
