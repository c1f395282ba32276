"""All-reduce on a ring: every rank gets the sum, and no link carries more than another.

    x = sum_r x_r       rank 0 -> 1 -> ... -> N-1 -> 0, N chunks: N-1 turns add, N-1 copy

    N = 3, rank 0       start   turn 0   turn 1   turn 2   turn 3
        chunk 0         0       0        0        012      012       digits: ranks whose
        chunk 1         0       0        012      012      012       numbers are in the chunk
        chunk 2         0       02       02       02       012

`naive_ring_all_reduce` waits for a chunk, adds it, and sends it on. `ring_all_reduce` does so in
parts (pipelined_ring.py): while one part is added, a posted receive gets the next.

Time: 2 (N-1) alpha + 2 (N-1)/N n beta for n bytes. Only the latency grows with N.
Memory: ROOM_BYTES. Error: N-1 additions an element. All ranks get the same bits, since each sum is
computed once and copied.
Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms, section 3; Gibiansky 2017.
"""

from ..core.later import later, torch
from ..order.pipelined_ring import Part, pipelined_ring
from ..order.plan import Recv, Send

with later():
    from ..runtime.talk import group as groups, message
    from .guards import all_reduce as guard


def naive_ring_all_reduce(tensor, group):
    """Replace a flat tensor on every rank by the sum over the ranks; return it. Between processes
    N must divide its length: messages from one place in the program have one shape."""
    rank, size = group.rank, group.size
    after, before = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    for i in range(size - 1):
        group.isend(chunks[(rank - i) % size], after)
        chunks[(rank - i - 1) % size].add_(group.recv(before))
    for i in range(size - 1):
        group.isend(chunks[(rank - i + 1) % size], after)
        chunks[(rank - i) % size].copy_(group.recv(before))
    group.finish()
    return tensor


ROOM_BYTES = 16 * 2**20  # for parts whose receives are posted early: a late one delays its sender


def ring_all_reduce(
    tensor: "torch.Tensor", group=None, op: str = "sum", name: str = "all_reduce"
) -> "torch.Tensor":
    """Replace the tensor on every rank by the sum, or mean, over the ranks; return it. If tensors
    differ in shape or dtype, it is Impossible on all ranks. `name` is that of its messages."""
    group = groups.Group.of(group)
    guard.refuse(tensor, op)
    if group.size == 1:
        return tensor
    agreement = group.agreement(f"{op} of {message.Shape.of(tensor)} in {name}", name)
    # a copy where it is not contiguous, or a conjugate that nobody computed yet
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    first, then = pipelined_ring(group.rank, group.size, flat.numel(), flat.itemsize, name)
    receives = [part for part in then if isinstance(part.op, Recv)]
    adds = sum(part.op.message.kind == "reduce" for part in receives)
    longest = max((part.stop - part.start for part in receives), default=1)
    ahead = min(adds, max(2, ROOM_BYTES // (longest * flat.itemsize)))
    room = group.room(ahead * longest * flat.itemsize, flat.device)
    room = room.view(flat.dtype).view(ahead, longest)
    coming: dict[int, tuple[torch.Tensor, groups.Handle]] = {}

    def post_receive(number: int) -> None:
        op, start, stop, _ = receives[number]
        into = room[number % ahead, : stop - start] if number < adds else flat[start:stop]
        handle = group.irecv(message.as_bytes(into), *op, agreement.site, agreed=True)
        coming[number] = into, handle

    def send(part: Part) -> None:
        group.isend(
            message.as_bytes(flat[part.start : part.stop]), *part.op, agreement.site, agreed=True
        )

    for number in (*range(ahead), *range(adds, len(receives))):
        post_receive(number)
    for part in first:
        send(part)
    guard.refuse_different(group, agreement.differing())
    received = 0
    for part in then:
        if isinstance(part.op, Send):
            send(part)
            continue
        into, handle = coming.pop(received)
        handle.wait()
        own = flat[part.start : part.stop]
        if received < adds:
            own.add_(into)
        if part.whole and op == "mean":
            own.div_(group.size)
        if received + ahead < adds:
            post_receive(received + ahead)
        received += 1
    group.finish()
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))
    return tensor
