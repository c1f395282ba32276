import torch


class answer:
    def __init__(self, parameters, pieces, group, lr, betas, eps, weight_decay):
        self.parameters, self.pieces, self.group = parameters, pieces, group
        self.lr, (self.b1, self.b2), self.eps, self.decay = lr, betas, eps, weight_decay
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]
        self.t = [0] * len(parameters)

    @torch.no_grad()
    def step(self):
        learnt, us, squares = [], [], []
        for n, (p, m, v, piece) in enumerate(zip(self.parameters, self.m, self.v, self.pieces)):
            if p.grad is None:
                continue
            g = p.grad
            self.t[n] += 1
            m.copy_(self.b1 * m + (1 - self.b1) * g)
            v.copy_(self.b2 * v + (1 - self.b2) * g**2)
            c1, c2 = 1 - self.b1 ** self.t[n], 1 - self.b2 ** self.t[n]
            r = m / c1 / ((v / c2).sqrt() + self.eps)
            u = r + self.decay * p
            counts = piece or self.group.rank == 0
            squares += [p.square().sum() * counts, u.square().sum() * counts]
            learnt.append(p)
            us.append(u)
        norms = self.group.all_reduce(torch.tensor(squares)).sqrt()
        for p, u, x_norm, u_norm in zip(learnt, us, norms[::2], norms[1::2]):
            ratio = min(x_norm, 10.0) / u_norm if x_norm > 0 and u_norm > 0 else 1.0
            p -= self.lr * ratio * u
