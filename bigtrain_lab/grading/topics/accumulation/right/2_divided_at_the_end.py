from itertools import islice

import torch


def answer(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    stream = iter(micro_batches)
    while window := list(islice(stream, k)):
        optimizer.zero_grad()
        count = 0
        for micro_batch in window:
            loss = loss_sum(micro_batch)
            count += tokens(micro_batch)
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        gradients = [p.grad for p in weights]
        for gradient in gradients:
            gradient /= max(count, 1)
        if clip is not None:
            norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
            for gradient in gradients:
                gradient *= min(1.0, clip / norm)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
