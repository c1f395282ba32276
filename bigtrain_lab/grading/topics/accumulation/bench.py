"""Accumulation: micro-batches, a summed loss whose gradient is a count, and an optimizer."""

from weakref import WeakSet

import torch

from ....runtime.memory.ledger import Ledger

WIDE = 500  # numbers of a weight, so that a copy of the gradient is more than all else


class Seen(torch.autograd.Function):
    """The identity, whose context is in `graphs` for as long as the graph is alive."""

    @staticmethod
    def forward(ctx, loss, graphs):
        graphs.add(ctx)
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def play(answer, k, lengths, pads, slopes, clip, scaled) -> dict:
    """The gradients of each update, the forwards before it, and what forwards find alive.

    lengths, pads, slopes    of each micro-batch: its tokens, its padding, and what a token counts
    """
    ones = [torch.ones(size, dtype=torch.float64) for size in (len(lengths), WIDE, 1)]
    a, b, c = weights = [torch.nn.Parameter(each) for each in ones]
    optimizer = torch.optim.SGD([{"params": [a]}, {"params": [b, c]}], 0.1)
    # which this one never uses
    optimizer.state |= {p: {"momentum_buffer": torch.full((1,), 0.5)} for p in weights}
    scaler = torch.amp.GradScaler("cpu", 1024.0, growth_interval=1) if scaled else None
    if scaled:
        scaler.scale(torch.ones(()))  # the first call makes its scale
    counts, graphs = torch.tensor(slopes, dtype=torch.float64), WeakSet()
    updates, rates, forwards, alive, waiting, copies = [], [], [[]], [0], [0], [0]
    states = []

    def state(*_):
        """Of the weights and of what the optimizer keeps, a number each."""
        kept = [optimizer.state[p].get("momentum_buffer") for p in weights]
        states.append([None if each is None else each[0].item() for each in weights + kept])

    def loss_sum(micro_batch):
        alive.append(len(graphs))
        waiting.append(ledger.now("activations"))
        copies.append(ledger.bytes // (8 * WIDE))
        ids = micro_batch[0][micro_batch[1] >= 0]
        forwards[-1].append(len(ids))
        loss = (counts[ids] * (a[ids] + 2 * b.sum() + 3 * c)).sum()
        return Seen.apply(loss + 0 * c.sum(), graphs)  # padding alone reaches a weight, too

    def note(*_):
        updates.append([[] if p.grad is None else p.grad.tolist() for p in weights])
        rates.append([group["lr"] for group in optimizer.param_groups])
        forwards.append([])

    for before in (state, note):
        optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(state)
    micro_batches = [
        (torch.full((n + pad,), i), torch.tensor([1] * n + [-100] * pad))
        for i, (n, pad) in enumerate(zip(lengths, pads))
    ]
    given = {} if clip is None else {"clip": clip}
    state()
    with Ledger() as ledger:
        answer(
            micro_batches,
            k,
            loss_sum,
            lambda micro_batch: int((micro_batch[1] >= 0).sum()),
            optimizer,
            **given,
            **({"scaler": scaler} if scaled else {}),
        )
    state()
    return {
        "between steps": [before != after for before, after in zip(states[::2], states[1::2])],
        "updates": updates,
        "rates": rates,
        "forwards": forwards,
        "alive": max(alive),
        "waiting": max(waiting),
        "copies": max(copies),
        "scale": scaler.get_scale() if scaled else 1.0,
    }
