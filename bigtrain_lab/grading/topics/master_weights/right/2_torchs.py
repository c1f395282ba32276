import torch


def answer(weights, masters, optimizer, scale, streak, growth_interval, clip):
    scaler = torch.amp.GradScaler("cpu", init_scale=float(scale), growth_interval=growth_interval)
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": int(streak)})
    scaler.scale(torch.zeros(()))
    for weight, master in zip(weights, masters):
        master.grad = None if weight.grad is None else weight.grad.float()
        weight.grad = None
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(masters, clip)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            weight.copy_(master)
    return scaler.get_scale(), scaler.state_dict()["_growth_tracker"]
