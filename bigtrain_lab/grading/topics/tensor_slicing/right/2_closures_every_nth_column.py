from types import SimpleNamespace

import torch


def answer(group):
    def mlp(x, A, a, B, b, drop):
        at, x = slice(group.rank, None, group.size), x * 1
        x.register_hook(lambda gradient: group.all_reduce(1 * gradient))
        hidden = torch.nn.GELU()(torch.addmm(a[at], x.flatten(0, -2), A[:, at]))
        y = drop(hidden, f"rank {group.rank}") @ B[at]
        group.all_reduce(y)
        return drop(torch.add(y.view(*x.shape[:-1], -1), b), "all")

    def loss(logits, targets):
        own = logits.logsumexp(-1)
        top = group.all_reduce(own.detach().clone(), op="max")
        ids = torch.arange(logits.shape[-1]) + group.rank * logits.shape[-1]
        at = ids == targets.unsqueeze(-1)
        sums = torch.stack([(own - top).exp(), (logits * at).sum(-1)])
        sums = sums + (group.all_reduce(sums.detach().clone()) - sums).detach()
        return torch.mean(top + sums[0].log() - sums[1])

    return SimpleNamespace(mlp=mlp, loss=loss)
