"""A loss scaler: trainings of two optimizers under one scaler, by a list of what happens."""

import torch


def play(answer, rule, events, trainings=1, momentum=0.0, idle=True) -> list[dict]:
    """What each "end" shows. Events: [number of the training, method, what it is given]; "save",
    and "load" of what was saved last."""
    every = [Training(answer(**rule), momentum, idle) for _ in range(trainings)]
    ends, saved = [], None
    for number, what, *given in events:
        mine = every[number]
        if what == "begin":
            mine.begin(*given)
        elif what == "end":
            ends.append(mine.end())
        elif what == "save":
            saved = mine.scaler.state_dict()
        else:
            mine.scaler.load_state_dict(saved)
    return ends


class Training:
    """Two optimizers (SGD, rate 1), each of two groups: 2 numbers; 3 numbers and, where `idle`, one
    parameter without a gradient."""

    def __init__(self, scaler, momentum, idle):
        self.scaler, self.weights, self.optimizers = scaler, [], []
        for number in range(2):
            two, three, one = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 3, 1))
            groups = [{"params": [two]}, {"params": [one, three] if idle else [three]}]
            optimizer = torch.optim.SGD(groups, lr=1.0, momentum=momentum)
            optimizer.register_step_pre_hook(lambda *_, number=number: self.called.append(number))
            self.weights.append([two, three])
            self.optimizers.append(optimizer)

    def begin(self, gradients, unscale) -> None:
        """Backward of a loss with these gradients, five numbers an optimizer, and unscale_."""
        self.given, self.called = self.optimizers[: len(gradients)], []
        loss = 3.0 + sum(
            (torch.cat(pair) * torch.tensor(slopes)).sum()
            for pair, slopes in zip(self.weights, gradients)
        )
        scaled = self.scaler.scale(loss)
        self.losses = [float(scaled), float(loss)]
        scaled.backward()
        for optimizer in self.given if unscale else ():
            self.scaler.unscale_(optimizer)

    def end(self) -> dict:
        for optimizer in self.given:
            self.scaler.step(optimizer)
        self.scaler.update()
        weights = [p for pair in self.weights for p in pair]
        shown = {
            "scaled loss, and the loss": self.losses,
            "weights": [p.tolist() for p in weights],
            "optimizers that stepped": self.called,
            "scale": float(self.scaler.get_scale()),
            "gradients left": [p.grad if p.grad is None else p.grad.tolist() for p in weights],
        }
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return shown
