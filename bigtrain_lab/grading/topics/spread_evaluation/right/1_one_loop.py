import os
from math import inf

import torch


def smoothed(logits, target, smoothing):
    log = logits.log_softmax(-1)
    word = -log.gather(-1, target[..., None]).squeeze(-1)
    others = -log[..., 1:].mean(-1)
    keep = target != 0
    return ((1 - smoothing) * word + smoothing * others)[keep].sum()


def save(state, path):
    aside = str(path) + ".partial"
    with open(aside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def answer(group, task, folder):
    model, optimizer = task.model, task.optimizer
    epoch, update, best, waited, scores = 0, 0, -inf, 0, []
    if (folder / "last.pt").exists():
        state = torch.load(folder / "last.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch, update, best, waited = state["progress"]
    stop = waited >= task.patience
    while not stop:
        for window in task.windows(epoch):
            words = group.all_reduce(sum((target != 0).sum() for _, target in window))
            for source, target in window:
                loss = smoothed(model(source), target, task.smoothing) / words
                loss.backward()
            for p in model.parameters():
                group.all_reduce(p.grad)
            update += 1
            for settings in optimizer.param_groups:
                settings["lr"] = task.rate(update)
            optimizer.step()
            optimizer.zero_grad()
        mine = task.held_out[group.rank :: group.size]
        counts = sum(task.counts(sentence) for sentence in mine)
        score = task.score(group.all_reduce(counts))
        scores.append(score)
        epoch += 1
        better = score > best
        best, waited = (score, 0) if better else (best, waited + 1)
        stop = waited >= task.patience
        stop, better = group.broadcast(torch.tensor([stop, better])).tolist()
        if group.rank == 0:
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "progress": (epoch, update, best, waited),
            }
            if better:
                save(state, folder / "best.pt")
            save(state, folder / "last.pt")
    return scores
