def answer(tensor, group):
    rank, size = group.rank, group.size
    after, before = (rank + 1) % size, (rank - 1) % size
    padding = -len(tensor) % size
    rows = tensor.new_zeros(size, (len(tensor) + padding) // size)
    rows.view(-1)[: len(tensor)] = tensor
    at = rank
    for number in range(2 * (size - 1)):
        group.isend(rows[at], after)
        at, got = (at - 1) % size, group.recv(before)
        rows[at] = rows[at] + got if number < size - 1 else got
    tensor[:] = rows.flatten()[: len(tensor)]
    return tensor
