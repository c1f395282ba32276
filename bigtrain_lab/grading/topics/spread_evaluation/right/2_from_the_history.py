import torch
import torch.nn.functional as F


class Run:
    def __init__(self, group, task, folder):
        self.group, self.task, self.folder = group, task, folder
        self.history, self.updates = [], 0

    def resume(self):
        if (self.folder / "last.pt").exists():
            kept = torch.load(self.folder / "last.pt")
            self.task.model.module.load_state_dict(kept["model"])
            self.task.optimizer.load_state_dict(kept["optimizer"])
            self.history, self.updates = kept["history"], kept["updates"]

    def waited(self):
        return len(self.history) - 1 - self.history.index(max(self.history))

    def over(self):
        return bool(self.history) and self.waited() >= self.task.patience

    def loss(self, source, target):
        logits, smoothing = self.task.model(source), self.task.smoothing
        vocabulary = logits.shape[-1]
        mass = F.one_hot(target, vocabulary) * (1 - smoothing) + smoothing / (vocabulary - 1)
        mass[..., 0] = 0
        mass[target == 0] = 0
        return F.cross_entropy(logits.flatten(0, 1), mass.flatten(0, 1), reduction="sum")

    def epoch(self, number):
        weights = list(self.task.model.parameters())
        for window in self.task.windows(number):
            words = 0
            for source, target in window:
                self.loss(source, target).backward()
                words += target.count_nonzero()
            sums = torch.cat([p.grad.flatten() for p in weights] + [torch.tensor([words])])
            self.group.all_reduce(sums)
            parts = (sums / sums[-1])[:-1].split([p.numel() for p in weights])
            for p, part in zip(weights, parts):
                p.grad = part.view_as(p)
            self.updates += 1
            for settings in self.task.optimizer.param_groups:
                settings["lr"] = self.task.rate(self.updates)
            self.task.optimizer.step()
            self.task.optimizer.zero_grad()

    def evaluate(self):
        sums = sum(
            self.task.counts(sentence)
            for at, sentence in enumerate(self.task.held_out)
            if at % self.group.size == self.group.rank
        )
        return self.task.score(self.group.all_reduce(sums))

    def keep(self, name):
        kept = {
            "model": self.task.model.module.state_dict(),
            "optimizer": self.task.optimizer.state_dict(),
            "history": self.history,
            "updates": self.updates,
        }
        aside = self.folder / f"{name}.partial"
        torch.save(kept, aside)
        aside.replace(self.folder / name)


def answer(group, task, folder):
    run = Run(group, task, folder)
    run.resume()
    before = len(run.history)
    while not group.broadcast(torch.tensor(float(run.over()))):
        run.epoch(len(run.history))
        run.history.append(run.evaluate())
        if group.rank == 0:
            if not run.waited():
                run.keep("best.pt")
            run.keep("last.pt")
    return run.history[before:]
