import torch


def answer(parameters, max_norm, dp, pp, tp):
    own = [p for p in parameters if p.grad is not None]
    flat = dp.all_reduce(torch.cat([p.grad.flatten() for p in own])) / dp.size
    parts = dict(zip(own, flat.split([p.numel() for p in own])))
    square = torch.zeros(1, dtype=torch.float64)
    for p, part in parts.items():  # views of flat
        if p.tied:
            pp.all_reduce(part)
        copies = (1 if p.sliced else tp.size) * (pp.size if p.tied else 1)
        square += part @ part / copies
    norm = pp.all_reduce(tp.all_reduce(square)) ** 0.5
    flat *= torch.clamp(max_norm / norm, max=1)
    for p, part in parts.items():
        p.grad = part.view_as(p)
    return norm
