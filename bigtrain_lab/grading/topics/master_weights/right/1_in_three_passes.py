import torch


def answer(weights, masters, optimizer, scale, streak, growth_interval, clip):
    for weight, master in zip(weights, masters):
        master.grad = None if weight.grad is None else weight.grad.float() / scale
        weight.grad = None
    reached = [master for master in masters if master.grad is not None]
    if not all(master.grad.isfinite().all() for master in reached):
        return scale / 2, 0
    torch.nn.utils.clip_grad_norm_(reached, clip)
    optimizer.step()
    for weight, master in zip(weights, masters):
        weight.data.copy_(master.data)
    streak += 1
    return (2 * scale, 0) if streak >= growth_interval else (scale, streak)
