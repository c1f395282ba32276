"""Data parallel: two batches on one rank, whose gradients an answer makes those of all."""

from contextlib import nullcontext

import torch

from ...trainings import drawn, flat


class Net(torch.nn.Module):
    """Two heads on a trunk, one layer of it frozen, in float64; twelve small gains."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.gains = torch.nn.ParameterList([*torch.rand(12, 2) + 0.5])
        sizes = (5, 7), (7, 7), (7, 6), (6, 6)
        self.trunk = torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes)
        self.a, self.b = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
        self.trunk[1].requires_grad_(False)
        self.double()
        # its numbers lie apart in memory
        self.register_buffer("scale", torch.rand(3, 2).double()[:, 0], persistent=False)
        self.register_buffer("seen", torch.tensor(seed))  # a whole number

    def learnt(self, learns: bool = True) -> list:
        return [p for p in self.parameters() if p.requires_grad is learns]

    def gradient(self) -> torch.Tensor:
        return flat(p.detach() * 0 if p.grad is None else p.grad for p in self.learnt())

    def state(self) -> torch.Tensor:
        return flat([*self.parameters(), *self.buffers()])

    def loss(self, data: dict) -> torch.Tensor:
        x, y = drawn(data)
        for layer in self.trunk:
            x = torch.tanh(layer(x))
        for gains in torch.cat([*self.gains]).view(4, -1):
            x = x * gains
        return ((sum(getattr(self, head)(x) for head in data["heads"]) * self.scale - y) ** 2).sum()


def play(answer, group, bucket_bytes, more, watched, seed, batches) -> dict:
    """What the rank starts from, and each batch's gradient. Marks say where each gradient is
    made: under no_sync, or in the last backward of a batch. `more`: samples without a loss.
    `watched`: whether each gradient is marked."""
    net, gradients, lacking, beyond = Net(seed), [], 0, 0
    for p in net.learnt() if watched else ():
        p.register_hook(lambda gradient: group.mark("gradient"))
    mine = answer(net, group, bucket_bytes)
    start = net.state().tolist()
    for number, batch in enumerate(batches):
        for at, data in enumerate(batch, 1):
            last = at == len(batch)
            with nullcontext() if last else mine.no_sync():
                group.mark(f"last of batch {number}" if last else "under no_sync")
                net.loss(data).backward()
                group.mark("end")
        mine.finish(more + sum(data["shapes"][0][0] for data in batch))
        gradients.append(net.gradient().tolist())
        lacking += sum(p.grad is None for p in net.learnt())
        beyond += sum(p.grad is not None for p in net.learnt(False))
        net.zero_grad()
    return {"start": start, "gradients": gradients, "lacking": lacking, "beyond": beyond}
