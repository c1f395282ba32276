import torch


class answer:
    def __init__(self, params, optimizer_class, group, max_norm=None, **kwargs):
        self.group, self.max_norm = group, max_norm
        params = list(params)
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        self.learnt = [[p for p in each["params"] if p.requires_grad] for each in groups]
        self.pieces = [torch.nn.Parameter(self.own(self.flat(ps))) for ps in self.learnt]
        groups = [{**each, "params": [piece]} for each, piece in zip(groups, self.pieces)]
        self.inner = optimizer_class(groups, **kwargs)

    def flat(self, tensors):
        whole = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return torch.nn.functional.pad(whole, (0, -len(whole) % self.group.size))

    def own(self, whole):
        return whole.view(self.group.size, -1)[self.group.rank].clone()

    def step(self):
        for ps, piece in zip(self.learnt, self.pieces):
            piece.grad = self.group.reduce_scatter(self.flat([p.grad for p in ps]), "mean")
        if self.max_norm is not None:
            square = sum(piece.grad.square().sum() for piece in self.pieces)
            norm = self.group.all_reduce(square).sqrt()
            for piece in self.pieces:
                piece.grad *= min(1.0, self.max_norm / (norm + 1e-6))
        self.inner.step()
        for ps, piece in zip(self.learnt, self.pieces):
            whole = self.group.all_gather(piece.detach())
            for p in ps:
                p.data.copy_(whole[: p.numel()].view_as(p))
                whole = whole[p.numel() :]
