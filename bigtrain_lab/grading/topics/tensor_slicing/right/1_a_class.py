import torch
from torch.nn.functional import gelu


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.group.all_reduce(gradient.clone()), None


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return group.all_reduce(x.clone())

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class answer:
    def __init__(self, group):
        self.group, self.rank, self.size = group, group.rank, group.size

    def own(self, tensor, dim=0):
        return tensor.chunk(self.size, dim)[self.rank]

    def mlp(self, x, A, a, B, b, drop):
        x = Copy.apply(x, self.group)
        hidden = gelu(x @ self.own(A, 1) + self.own(a))
        hidden = drop(hidden, 1 + self.rank)
        y = Sum.apply(hidden @ self.own(B), self.group)
        return drop(y + b, 0)

    def loss(self, logits, targets):
        width = logits.shape[-1]
        top = self.group.all_reduce(logits.detach().amax(-1), "max")
        logits = logits - top[..., None]
        place = targets - self.rank * width
        mine = (place >= 0) & (place < width)
        found = logits.gather(-1, place.clamp(0, width - 1)[..., None])[..., 0]
        target = Sum.apply(found * mine, self.group)
        total = Sum.apply(logits.exp().sum(-1), self.group)
        return (total.log() - target).mean()
