import torch


def answer(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        sums = [torch.zeros_like(p) for p in weights]
        for micro_batch in window:
            loss = loss_sum(micro_batch) / (sum(map(tokens, window)) or 1)
            loss = loss if scaler is None else scaler.scale(loss)
            sums = [a + b for a, b in zip(sums, torch.autograd.grad(loss, weights))]
        for p, total in zip(weights, sums):
            p.grad = total
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(weights, clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
