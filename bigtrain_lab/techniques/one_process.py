"""The same training in one process: the reference of every parallel run.

    synchronous   w(t+1) = w(t) - lr * mean over micro-batches of grad f_m(w(t))
    delayed       w_s(t+1) = w_s(t) - lr * grad_s f_t(w_0(t-p+1), w_1(t-p+2), ..., w_{p-1}(t)),
                  w(t) = w(0) for t < 0

Any torch optimizer may replace "- lr *". `delayed` is PipeDream's published recurrence of p stages,
with a list of past weights and no pipeline. Without stashing, a stage's backward uses the newest
weights w_s(t), not those of its forward. Other delays (vertical sync, 2BW) are other functions from
(stage, micro-batch) to versions.
Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .learning_rates import set_rate


class Training(NamedTuple):
    """Loss of each micro-batch in order, the stages with their final weights, and the relative
    gradient error of each micro-batch."""

    losses: list[float]
    stages: Sequence[nn.Module]
    gradient_errors: list[float]

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the weights of all stages, by name."""
        return {name: p.detach() for stage in self.stages for name, p in stage.named_parameters()}


class Sample(NamedTuple):
    """One micro-batch: inputs, targets, and further arguments of every stage's forward."""

    inputs: Tensor
    targets: Tensor
    context: tuple = ()


def synchronous(
    stages: Sequence[nn.Module],
    batches: Iterable[Sequence[Sample]],
    loss_fn: Callable,
    optimizer: Callable,
    weights: Callable | None = None,
    clip: float | None = None,
    learning_rate: Callable[[int], float] | None = None,
) -> Training:
    """Make one update from each batch, by its micro-batches' mean loss, or by the sum of losses
    times `weights(batch)`. Update n has the rate `learning_rate(n)`, n = 1, 2, ..."""
    updates = [optimizer(list(stage.parameters())) for stage in stages]
    losses = []
    for number, batch in enumerate(batches, 1):
        factors = weights(batch) if weights else [1 / len(batch)] * len(batch)
        for sample, factor in zip(batch, factors):
            x = sample.inputs
            for stage in stages:
                x = stage(x, *sample.context)
            loss = loss_fn(x, sample.targets)
            (loss * factor).backward()
            losses.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(
                {p: None for stage in stages for p in stage.parameters()}, clip
            )  # a tied one counts once
        for update in updates:
            if learning_rate:
                set_rate(update, learning_rate(number))
            update.step()
            update.zero_grad()
    return Training(losses, stages, [])


def delayed(
    stages: Sequence[nn.Module],
    samples: Iterable[Sample],
    loss_fn: Callable,
    optimizer: Callable,
    stashing: bool = True,
    *,
    versions: Callable | None = None,
    update_size: int = 1,
) -> Training:
    """Train on weights of past versions. Every `update_size` micro-batches update each stage once.

    `versions(s, t)` gives two versions of stage s: for the forward of micro-batch t, and for its
    backward. None: PipeDream's, p-1-s updates old. Its backward has the same if `stashing`, else
    the newest. `gradient_errors` has |g - g'| / |g'| of each micro-batch. g is the gradient used,
    and g' that of the forward's weights.
    """
    last = len(stages) - 1
    versions = versions or (
        lambda s, t: (max(0, t - (last - s)), max(0, t - (last - s)) if stashing else t)
    )
    updates = [optimizer(list(stage.parameters())) for stage in stages]
    history = [{0: snapshot(stage)} for stage in stages]  # history[s][t] = w_s(t)
    losses, errors = [], []
    for t, sample in enumerate(samples):
        forward, backward = (
            [held[versions(s, t)[half]] for s, held in enumerate(history)] for half in (0, 1)
        )
        loss, gradient = chain_gradient(stages, forward, forward, sample, loss_fn)
        losses.append(loss)
        errors.append(0.0)
        if any(f is not b for f, b in zip(forward, backward)):
            _, used = chain_gradient(stages, forward, backward, sample, loss_fn)
            errors[-1], gradient = relative_error(used, gradient), used
        for s, (stage, update) in enumerate(zip(stages, updates)):
            for name, parameter in stage.named_parameters():
                if parameter.requires_grad and gradient[s][name] is not None:
                    part = gradient[s][name] / update_size
                    parameter.grad = part if parameter.grad is None else parameter.grad + part
            if (t + 1) % update_size == 0:
                update.step()
                update.zero_grad()
                newest = (t + 1) // update_size
                history[s][newest] = snapshot(stage)
                history[s].pop(newest - len(stages) - 1, None)  # no later micro-batch reads it
    return Training(losses, stages, errors)


def chain_gradient(
    stages, forward_weights, backward_weights, sample: Sample, loss_fn
) -> tuple[float, list[dict[str, Tensor]]]:
    """Return (loss, gradient of each stage) of a forward on some weights and a backward on
    others."""
    x, chain = sample.inputs, []
    for stage, weights in zip(stages, forward_weights):
        own = {name: w.clone().requires_grad_() for name, w in weights.items()}
        x = x.detach().requires_grad_(x.is_floating_point())
        y = functional_call(
            stage, own, (x.clone(), *sample.context)
        )  # a stage may change what it is given in place
        chain.append((x, own, y))
        x = y
    output = x.detach().requires_grad_()
    loss = loss_fn(output, sample.targets)
    (dy,) = torch.autograd.grad(loss, output)
    gradients = []
    for (x, own, y), weights in zip(reversed(chain), reversed(backward_weights)):
        for name, w in own.items():
            w.data.copy_(weights[name])  # .data: autograd does not notice, and uses the new values
        torch.autograd.backward(y, dy)
        dy = x.grad
        gradients.append({name: w.grad for name, w in own.items()})
    return loss.item(), gradients[::-1]


def relative_error(used: list[dict[str, Tensor]], true: list[dict[str, Tensor]]) -> float:
    """Return |used - true| / |true| over the whole model."""
    off = sum((used[s][n] - true[s][n]).square().sum() for s in range(len(true)) for n in true[s])
    size = sum(g.square().sum() for stage in true for g in stage.values())
    return float((off / size).sqrt())


def snapshot(stage: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in stage.named_parameters()}
