import torch


def answer(parameters, max_norm, dp, pp, tp):
    learnt = [p for p in parameters if p.grad is not None]
    for p in learnt:
        dp.all_reduce(p.grad, "mean")
        if p.tied:
            pp.all_reduce(p.grad)
    square = torch.zeros(1, dtype=torch.float64)
    for p in learnt:
        counts = (p.sliced or tp.rank == 0) and (pp.rank == 0 or not p.tied)
        square += counts * p.grad.pow(2).sum()
    tp.all_reduce(square)
    pp.all_reduce(square)
    norm = square.sqrt().item()
    factor = min(1, max_norm / (norm + 1e-6))
    for p in learnt:
        p.grad *= factor
    return norm
