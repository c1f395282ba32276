import torch


class answer:
    """LAMB layer by layer, with phi(z) = min(z, clip_norm). `pieces[n]`: each rank of the group has
    a piece of parameter n, no duplicate. The ranks have gradients of the same parameters."""

    def __init__(self, parameters, pieces, group, lr, betas, eps, weight_decay, clip_norm=10.0):
        self.parameters, self.pieces, self.group, self.clip = parameters, pieces, group, clip_norm
        self.lr, (self.b1, self.b2), self.eps, self.decay = lr, betas, eps, weight_decay
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]
        self.t = [0] * len(parameters)

    @torch.no_grad()
    def step(self):
        learnt, squares = [], []
        for n, (p, m, v, piece) in enumerate(zip(self.parameters, self.m, self.v, self.pieces)):
            if p.grad is None:
                continue
            g = p.grad
            self.t[n] += 1
            m.copy_(self.b1 * m + (1 - self.b1) * g)
            v.copy_(self.b2 * v + (1 - self.b2) * g**2)
            c1, c2 = 1 - self.b1 ** self.t[n], 1 - self.b2 ** self.t[n]
            adam_step = m / c1 / ((v / c2).sqrt() + self.eps)
            u = adam_step + self.decay * p
            counts = piece or self.group.rank == 0
            squares += [p.square().sum() * counts, u.square().sum() * counts]
            learnt.append((p, u))
        norms = self.group.all_reduce(torch.tensor(squares, dtype=torch.float64)).sqrt()
        for (p, u), x_norm, u_norm in zip(learnt, norms[::2], norms[1::2]):
            ratio = min(x_norm, self.clip) / u_norm if x_norm > 0 and u_norm > 0 else 1.0
            p -= self.lr * ratio * u
