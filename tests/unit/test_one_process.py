"""The recurrence of delayed weights against a literal transcription."""

import numpy as np
import pytest
import torch

from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.models import layered_mlp
from bigtrain_lab.order.schedule import Action, Schedule
from bigtrain_lab.techniques import one_process
from bigtrain_lab.techniques.one_process import Sample

STAGES, WIDTH = 4, 16


def task(samples=24, rows=32):
    """Trial T2 of the lessons: four stages of one 16 x 16 layer learn a fixed random teacher."""
    teacher = layered_mlp(STAGES, WIDTH, seed=7, dtype=torch.float64)[0]
    draw = torch.Generator().manual_seed(1)
    made = []
    for _ in range(samples):
        x = torch.randn(rows, WIDTH, dtype=torch.float64, generator=draw)
        with torch.no_grad():
            made.append(Sample(x, teacher(x)))
    return made


def joined(samples):
    return Sample(torch.cat([s.inputs for s in samples]), torch.cat([s.targets for s in samples]))


def loss_fn(y, t):
    return (y - t).square().mean()


def sgd(lr):
    return lambda params: torch.optim.SGD(params, lr)


def stages():
    return layered_mlp(STAGES, WIDTH, STAGES, dtype=torch.float64)


PUBLISHED = {  # the version that stage s of p uses for micro-batch t
    "pipedream": lambda s, t: t - (STAGES - 1) + s,  # w_0(t-p+1), w_1(t-p+2), ..., w_{p-1}(t)
    "pipedream-vertical-sync": lambda s, t: t - (STAGES - 1),  # every argument of time t-p+1
    "pipedream-2bw": lambda s, t: (
        t - 1
    ),  # w(t+1) = w(t) - lr grad f(w(t-1)), here with one micro-batch a batch
}


def transcribed(samples, lr, version):
    """w_s(t+1) = w_s(t) - lr * grad_s f_t(w_0(version(0, t)), ..., w_{p-1}(version(p-1, t))), with
    plain matrices."""
    w = [
        [dict(stage.named_parameters())[f"layers.{s}.weight"].detach().clone()]
        for s, stage in enumerate(stages())
    ]
    losses = []
    for t, sample in enumerate(samples):
        leaves = [w[s][max(0, version(s, t))].clone().requires_grad_() for s in range(STAGES)]
        x = sample.inputs
        for s, leaf in enumerate(leaves):
            x = x @ leaf.T
            x = x if s == STAGES - 1 else torch.tanh(x)
        loss = loss_fn(x, sample.targets)
        losses.append(loss.item())
        for s, gradient in enumerate(torch.autograd.grad(loss, leaves)):
            w[s].append(w[s][-1] - lr * gradient)
    return losses, {f"layers.{s}.weight": w[s][-1] for s in range(STAGES)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_schedule_s_versions_are_those_of_its_paper(name):
    """From the schedule's own versions to the recurrence as printed."""
    losses, weights = transcribed(task(), 0.5, PUBLISHED[name])
    m = (
        4 if name == "pipedream-2bw" else 1
    )  # 2BW needs p micro-batches in an update: the t-th update's first stands for it
    schedule = Schedule.named(name)(STAGES, 24 * m, **({"batch": m} if m > 1 else {}))
    found = one_process.delayed(
        stages(),
        task(),
        loss_fn,
        sgd(0.5),
        versions=lambda s, t: tuple(schedule.version(Action(k, s, t * m)) for k in "FB"),
    )
    assert not tensors_differ(found.weights, weights)
    assert not tensors_differ({"loss": found.losses}, {"loss": losses})
    assert found.gradient_errors == [0.0] * len(losses)


def test_2bw_in_batches_of_four():
    """w(t+1) = w(t) - lr * grad of the mean of batch t's losses at w(t-1)."""
    schedule = Schedule.named("pipedream-2bw")(STAGES, 16, batch=4)
    found = one_process.delayed(
        stages(),
        task(16),
        loss_fn,
        sgd(0.5),
        update_size=4,
        versions=lambda s, t: tuple(schedule.version(Action(k, s, t)) for k in "FB"),
    )
    batches = [joined(task(16)[t : t + 4]) for t in range(0, 16, 4)]
    _, weights = transcribed(batches, 0.5, PUBLISHED["pipedream-2bw"])
    assert not tensors_differ(found.weights, weights)


def test_the_delay_shows_at_this_rate():
    """Without the delay the losses part by far more than any tolerance used here."""
    delayed = one_process.delayed(stages(), task(), loss_fn, sgd(0.5))
    prompt = one_process.synchronous(stages(), [[s] for s in task()], loss_fn, sgd(0.5))
    assert max(abs(a - b) / b for a, b in zip(delayed.losses, prompt.losses)) > 1e-3


def test_without_stashing_the_gradient_is_of_no_function():
    mixed = one_process.delayed(stages(), task(), loss_fn, sgd(0.5), stashing=False)
    assert mixed.gradient_errors[0] == 0.0  # before any update there is one version only
    assert 1e-3 < np.mean(mixed.gradient_errors[STAGES:]) < 1
