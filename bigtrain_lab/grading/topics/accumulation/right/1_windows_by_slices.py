from torch import nn


def answer(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        total = sum(tokens(each) for each in window) or 1
        optimizer.zero_grad()
        for each in window:
            loss = loss_sum(each) / total
            if scaler is not None:
                loss = scaler.scale(loss)
            loss.backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
