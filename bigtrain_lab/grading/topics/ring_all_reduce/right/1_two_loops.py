import torch


@torch.no_grad()
def answer(tensor, group):
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
