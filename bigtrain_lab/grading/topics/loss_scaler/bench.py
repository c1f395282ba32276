"""A loss scaler: trainings of two optimizers under one scaler, by a list of what happens."""

import torch


def play(answer, rule, events, trainings=1, momentum=0.0, idle=True) -> list[dict]:
    """What each "end" shows. Events: [number of the training, what, what it is given]; "save",
    and "load" of what was saved first."""
    saved = []
    every = [Training(answer(**rule), momentum, idle, saved) for _ in range(trainings)]
    shown = [getattr(every[number], what)(*given) for number, what, *given in events]
    return [each for each in shown if each is not None]


class Training:
    """Two optimizers (SGD, rate 1), each of two groups: 2 numbers; 1 number, 2 numbers and, where
    `idle`, one parameter without a gradient, whose weight decay would move it."""

    def __init__(self, scaler, momentum, idle, saved):
        self.scaler, self.weights, self.optimizers, self.saved = scaler, [], [], saved
        for number in range(2):
            first, *more, none = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 1, 2, 1))
            none.data += 1
            groups = [{"params": [first]}, {"params": [none, *more] if idle else more}]
            groups[1]["weight_decay"] = 0.5
            optimizer = torch.optim.SGD(groups, lr=1.0, momentum=momentum)
            optimizer.register_step_pre_hook(lambda *_, number=number: self.called.append(number))
            self.weights.append([first, *more])
            self.optimizers.append(optimizer)

    def save(self) -> None:
        self.saved.append(self.scaler.state_dict())

    def load(self) -> None:
        self.scaler.load_state_dict(self.saved[0])

    def begin(self, gradients, unscale) -> None:
        """Backward of a loss with these gradients, five numbers an optimizer, and unscale_."""
        self.given, self.called = self.optimizers[: len(gradients)], []
        loss = 3.0 + sum(
            (torch.cat(parts) * torch.tensor(slopes)).sum()
            for parts, slopes in zip(self.weights, gradients)
        )
        scaled = self.scaler.scale(loss)
        self.losses = [float(scaled), float(loss)]
        scaled.backward()
        self.reached = [p for parts in self.weights for p in parts]
        self.gradients = [p.grad for p in self.reached]
        for optimizer in self.given if unscale else ():
            self.scaler.unscale_(optimizer)

    def change(self, least, most) -> None:
        """Gradients between these two, as clipping by value leaves them; of a nan there, nan."""
        for p in self.reached:
            if p.grad is not None:
                p.grad.clamp_(least, most)

    def end(self, steps=2, early=False) -> dict:
        """`steps`: of how many optimizers; `early`: gradients are zeroed before update."""
        for optimizer in self.given[:steps]:
            self.scaler.step(optimizer)
        for p in self.reached if early else ():
            p.grad = None
        self.scaler.update()
        shown = {
            "scaled loss, and the loss": self.losses,
            "weights": [
                p.tolist()
                for each in self.optimizers
                for group in each.param_groups
                for p in group["params"]
            ],
            "optimizers that stepped": self.called,
            "scale": float(self.scaler.get_scale()),
            "gradients, where they were": [
                g.tolist() if g is not None and g is p.grad else None
                for p, g in zip(self.reached, self.gradients)
            ],
        }
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return shown
