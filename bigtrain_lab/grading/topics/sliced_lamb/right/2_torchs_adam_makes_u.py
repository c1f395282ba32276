import torch


class answer:
    def __init__(self, parameters, pieces, group, lr, betas, eps, weight_decay):
        self.parameters, self.group, self.lr, self.decay = parameters, group, lr, weight_decay
        self.are_pieces = torch.tensor(pieces)
        self.shadows = [torch.zeros_like(p) for p in parameters]
        self.adam = torch.optim.Adam(self.shadows, 1.0, betas, eps)

    @torch.no_grad()
    def step(self):
        for p, shadow in zip(self.parameters, self.shadows):
            shadow.zero_()
            shadow.grad = p.grad
        self.adam.step()
        us = [self.decay * p - shadow for p, shadow in zip(self.parameters, self.shadows)]
        own = torch.stack([each.square().sum() for each in (*self.parameters, *us)]).view(2, -1)
        summed = self.group.all_reduce(own.clone())
        x_norms, u_norms = torch.where(self.are_pieces, summed, own).sqrt()
        ratios = x_norms.clamp(max=10) / u_norms
        ratios[(x_norms == 0) | (u_norms == 0)] = 1.0
        for p, u, ratio in zip(self.parameters, us, ratios):
            if p.grad is not None:
                p -= self.lr * ratio * u
