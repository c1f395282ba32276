"""A collective on real ranks: the executor runs its plan with the chunks of a real tensor.

Each message carries a chunk's bytes, whatever the dtype; a received chunk is added to the own one, or replaces it.
No chunk is changed in place, so one that is still being sent stays as it was. Memory: about twice the tensor.
"""

import torch

from ..collective import Collective
from ..plan import lower_collective
from .execute import Work, execute
from .message import as_bytes


class Chunks(Work):
    """The chunks of one tensor on one rank; None where the rank brings nothing."""

    def __init__(self, collective: Collective, rank: int, tensor: torch.Tensor):
        parts = tensor.detach().reshape(-1).tensor_split(collective.chunks)
        self.chunks = [part if collective.brings(rank, n) else None for n, part in enumerate(parts)]
        self.dtype = tensor.dtype

    def send(self, message):
        return as_bytes(self.chunks[message.stage])

    def receive(self, message, tensor):
        own, came = self.chunks[message.stage], tensor.view(self.dtype)
        self.chunks[message.stage] = came if own is None or message.kind == "copy" else own + came


def collect(collective: Collective, tensor: torch.Tensor, rank, name: str = "") -> torch.Tensor:
    """Do the collective on the tensor, in place; all ranks call it with tensors of one shape and dtype. Chunks that
    the collective does not want on this rank stay as they are. Its messages' names begin with `name`."""
    work = Chunks(collective, rank.index, tensor)
    execute(lower_collective(collective, tensor.numel(), tensor.itemsize, name), rank, work)
    whole = tensor.detach().contiguous()
    for number, part in enumerate(whole.view(-1).tensor_split(collective.chunks)):
        if collective.wants(rank.index, number):
            part.copy_(work.chunks[number])
    if not tensor.is_contiguous():
        tensor.detach().copy_(whole)
    return tensor
