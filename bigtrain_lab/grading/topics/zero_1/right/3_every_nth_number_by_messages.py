import torch


class answer(torch.optim.Optimizer):
    def __init__(self, params, optimizer_class, group, max_norm=None, **kwargs):
        super().__init__(params, kwargs)
        self.ranks, self.max_norm = group, max_norm
        for each in self.param_groups:
            each["params"] = [p for p in each["params"] if p.requires_grad]
        self.learnt = [p for each in self.param_groups for p in each["params"]]
        mine = slice(group.rank, None, group.size)  # every N-th number
        self.shadows = {p: p.detach().flatten()[mine].clone() for p in self.learnt}
        own = [
            {**each, "params": [self.shadows[p] for p in each["params"]]}
            for each in self.param_groups
        ]
        self.inner = optimizer_class(own, **kwargs)

    @torch.no_grad()
    def step(self, closure=None):
        me, others = self.ranks.rank, [r for r in range(self.ranks.size) if r != self.ranks.rank]
        for p in self.learnt:
            for other in others:
                self.ranks.isend(p.grad.flatten()[other :: self.ranks.size], other)
            parts = [p.grad.flatten()[me :: self.ranks.size], *map(self.ranks.recv, others)]
            self.shadows[p].grad = torch.stack(parts).mean(0)
        if self.max_norm is not None:
            squares = torch.stack([shadow.grad.norm() ** 2 for shadow in self.shadows.values()])
            norm = self.ranks.all_reduce(squares).sum().sqrt()
            for shadow in self.shadows.values():
                shadow.grad.mul_((self.max_norm / (norm + 1e-6)).clamp(max=1))
        self.inner.step()
        for p, shadow in self.shadows.items():
            p.view(-1)[me :: self.ranks.size] = shadow
            for other in others:
                self.ranks.isend(shadow, other)
            for other in others:
                p.view(-1)[other :: self.ranks.size] = self.ranks.recv(other)
        self.ranks.finish()
