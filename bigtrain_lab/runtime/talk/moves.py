"""A collective on real ranks: the executor runs its plan with the chunks of a real tensor.

Each message carries a chunk's bytes, whatever the dtype; a received chunk is added to the own one,
or replaces it. No chunk is changed in place, so one that is still being sent stays as it was.
Memory: about twice the tensor.
"""

import torch

from ...order.collective import Collective
from ...order.plan import lower_collective
from .execute import Work, execute
from .message import as_bytes


class Chunks(Work):
    """The chunks of one tensor on one rank; None where the rank brings nothing."""

    def __init__(self, collective: Collective, rank: int, tensor: torch.Tensor):
        parts = tensor.detach().reshape(-1).tensor_split(collective.chunks)
        self.chunks = [part if collective.brings(rank, n) else None for n, part in enumerate(parts)]
        self.wanted = [n for n in range(collective.chunks) if collective.wants(rank, n)]
        self.dtype = tensor.dtype

    def send(self, message):
        return as_bytes(self.chunks[message.stage])

    def receive(self, message, tensor):
        own, came = self.chunks[message.stage], tensor.view(self.dtype)
        self.chunks[message.stage] = came if own is None or message.kind == "copy" else own + came

    def store(self, tensor: torch.Tensor) -> None:
        """Write the chunks that the collective wants on this rank into the tensor."""
        whole = tensor.detach().contiguous()
        parts = whole.view(-1).tensor_split(len(self.chunks))
        for number in self.wanted:
            parts[number].copy_(self.chunks[number])
        if not tensor.is_contiguous():
            tensor.detach().copy_(whole)


def collect(collective: Collective, tensor: torch.Tensor, rank, name: str = "") -> torch.Tensor:
    """Do the collective on the tensor, in place; all ranks call it with tensors of one shape and
    dtype. Chunks that the collective does not want on this rank stay as they are. Its messages'
    names begin with `name`.
    """
    work = Chunks(collective, rank.index, tensor)
    execute(lower_collective(collective, tensor.numel(), tensor.itemsize, name), rank, work)
    work.store(tensor)
    return tensor
