import torch


class answer:
    def __init__(self, params, optimizer_class, group, max_norm=None, **kwargs):
        self.group, self.most = group, max_norm
        groups = [dict(each) if isinstance(each, dict) else {"params": [each]} for each in params]

        def cut(p):
            return p.data.view(-1).tensor_split(group.size)[group.rank]

        self.pieces = {
            p: torch.nn.Parameter(cut(p))
            for each in groups
            for p in each["params"]
            if p.requires_grad
        }
        for each in groups:
            each["params"] = [self.pieces[p] for p in each["params"] if p in self.pieces]
        self.inner = optimizer_class(groups, **kwargs)

    def step(self):
        for p, piece in self.pieces.items():  # a piece is a view of its parameter
            piece.grad = self.group.reduce_scatter(p.grad.view(-1), "mean")
        if self.most is not None:
            norm = torch.cat([piece.grad for piece in self.pieces.values()]).norm()
            norm = self.group.all_reduce(norm**2) ** 0.5
            torch.nn.utils.clip_grads_with_norm_(self.pieces.values(), self.most, norm)
        self.inner.step()
        for p, piece in self.pieces.items():
            self.group.all_gather(piece.data, out=p.data.view(-1))
