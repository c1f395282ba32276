import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def answer(parameters, max_norm, dp, pp, tp):
    learnt = [p for p in parameters if p.grad is not None]
    slices, duplicates = [], []
    for p in learnt:
        dp.all_reduce(p.grad, "mean")
        if p.tied:
            p.grad = pp.all_reduce(p.grad)
        if not p.tied or pp.rank == 0:
            (slices if p.sliced else duplicates).append(p.grad)
    square = tp.all_reduce(get_total_norm(slices) ** 2) + get_total_norm(duplicates) ** 2
    norm = torch.sqrt(pp.all_reduce(square))
    clip_grads_with_norm_(learnt, max_norm, norm)
    return norm
