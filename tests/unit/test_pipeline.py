"""A pipeline of a script's own stages, on ranks that take turns: they learn what one process learns,
or are refused. A stage as a function of a weight version."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bigtrain_lab import Action, Impossible, Schedule
from bigtrain_lab.techniques import Pipeline
from bigtrain_lab.techniques.one_process import Sample, delayed
from bigtrain_lab.techniques.weight_versions import WeightVersions
from tests.unit.reruns import close
from tests.unit.threads import on_threads

X = torch.linspace(-2, 2, 48, dtype=torch.float64).reshape(12, 4).sin()


class Doubled(torch.Tensor):
    """A weight that counts twice in a product."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            twice = [2 * each if isinstance(each, cls) else each for each in args]
            return function(*(twice if function is functional.linear else args), **kwargs or {})


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(self.first(x))

    def inner(self, x):
        return self.second(x.tanh()).tanh()


class Subclass(Stage):
    def forward(self, x):
        return self.inner(functional.linear(x, self.first.weight.as_subclass(Doubled)))


class Checkpointed(Stage):
    reentrant = False

    def forward(self, x):
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


class Reentrant(Checkpointed):
    reentrant = True


class Gradient(Stage):
    """What it returns depends on the gradient of its first product."""

    def forward(self, x):
        z = x if x.requires_grad else x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.first(z).square().sum(), z, create_graph=True)
        return self.inner(slope + x)


class Listed(Stage):
    """Its first weight is in a list too, and is used from there."""

    def __init__(self):
        super().__init__()
        self.list = [self.first.weight]

    def forward(self, x):
        return self.inner(functional.linear(x, self.list[0], self.first.bias))


class Returns(Stage):
    def forward(self, x):
        return super().forward(x).as_subclass(Doubled)


def stages(kind, count=2):
    torch.manual_seed(0)
    return [kind().double() for _ in range(count)]


def adam(parameters):
    return torch.optim.Adam(parameters, 0.1)


def sgd(parameters):
    return torch.optim.SGD(parameters, 1.0)


class Clipped(torch.optim.SGD):
    """It goes by the sign of an average of what it clips."""

    def step(self):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.01)
        for p in self.param_groups[0]["params"]:
            average = self.state[p].setdefault("average", torch.zeros_like(p))
            p.grad = average.lerp_(p.grad, 0.3).sign()
        super().step()


def learnt(kind, name, sizes, times=1, between=lambda stage: None, optimizer=adam):
    """The weights that batches of these numbers of micro-batches leave, two rows each."""
    made = stages(kind)

    def program(group):
        stage, pipeline = made[group.rank], None
        for x in X.split([2 * size for size in sizes]):
            pipeline = Pipeline(
                stage,
                Schedule.named(name)(2, len(x) // 2),
                functional.mse_loss,
                group,
                optimizer=optimizer,
                after=pipeline,
            )
            for _ in range(times):
                pipeline.step(x, x.cos())
                between(stage)

    on_threads(program, 2)
    return [p.detach() for stage in made for p in stage.parameters()]


@pytest.mark.parametrize(
    "kind, name", [(Stage, "1f1b"), (Subclass, "zb-h1"), (Checkpointed, "gpipe")]
)
def test_ranks_learn_what_one_process_learns_and_moments_go_on_in_a_smaller_last_batch(kind, name):
    alone, sizes = nn.Sequential(*stages(kind)), (2, 3, 1)
    optimizer = adam(alone.parameters())
    for x in X.split([2 * size for size in sizes]):
        optimizer.zero_grad()
        functional.mse_loss(alone(x), x.cos()).backward()
        optimizer.step()
    assert close(learnt(kind, name, sizes), [p.detach() for p in alone.parameters()])


@pytest.mark.parametrize("kind", [Stage, Checkpointed, Reentrant])
def test_what_a_backward_runs_again_has_the_weights_of_its_forward(kind):
    name, alone = "pipedream-vertical-sync", stages(Stage)
    order = Schedule.named(name)(2, 4)
    for batch in X.split([8, 4]):
        delayed(
            alone,
            [Sample(x, x.cos()) for x in batch.split(2)],
            functional.mse_loss,
            sgd,
            versions=lambda s, n: tuple(order.version(Action(kind, s, n)) for kind in "FB"),
        )
    assert close(
        learnt(kind, name, (4, 2), optimizer=sgd),
        [p.detach() for stage in alone for p in stage.parameters()],
    )


def test_a_weight_from_a_list_is_right_where_a_forward_has_the_newest_version():
    listed, plain = (learnt(kind, "pipedream", (6,), 2) for kind in (Listed, Stage))
    assert close(listed, plain)


@pytest.mark.parametrize(
    "kind, name, between, optimizer, sentence",
    [
        (Gradient, "zb-h1", None, adam, "is split, and a gradient was asked for"),
        (Returns, "1f1b", None, adam, "returned a Doubled: between stages"),
        (
            Stage,
            "1f1b",
            lambda stage: stage.load_state_dict(stage.state_dict(), assign=True),
            adam,
            "Parameters of stage . were replaced since",
        ),
        (
            Stage,
            "1f1b",
            lambda stage: stage(X).sum().backward(),
            adam,
            "There are gradients of another backward",
        ),
        (Listed, "pipedream-vertical-sync", None, sgd, "from another place than its module"),
        (Stage, "1f1b", None, Clipped, "Clipped steps a tensor by the gradients of others too"),
    ],
)
def test_what_would_learn_otherwise_is_refused(kind, name, between, optimizer, sentence):
    with pytest.raises(Impossible, match=sentence):
        learnt(kind, name, (6,), 2, between or (lambda stage: None), optimizer)


# -- weight versions: what torch.func.functional_call promises. Gradients over versions: see tests/parity


class Versioned(nn.Module):
    """Tied weights (one parameter at two places), a batch norm's buffers, and a failure on
    demand."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.down.weight = self.up.weight

    def forward(self, x, fail=False):
        x = self.norm(self.up(x))
        if fail:
            raise ValueError("on demand")
        return self.down(x)


def stage_and_versions():
    stage = Versioned().double()
    return stage, WeightVersions(stage), torch.randn(5, 4, dtype=torch.float64)


def test_a_call_is_functional_call_with_tied_weights_and_buffers():
    stage, versions, x = stage_and_versions()
    twin = Versioned().double()
    other = {name: (2 * p).detach().requires_grad_() for name, p in stage.named_parameters()}
    with versions.placed(other):
        found = stage(x)
    expected = functional_call(twin, other, (x,))
    assert torch.equal(stage.norm.running_mean, twin.norm.running_mean)
    assert torch.equal(found, expected) and not torch.equal(found, stage(x))
    assert torch.autograd.grad(found.sum(), other["up.weight"])[0].abs().max() > 0


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_call_the_module_has_its_own_parameters_again(fails):
    stage, versions, x = stage_and_versions()
    before = dict(stage.named_parameters(remove_duplicate=False))
    with (
        pytest.raises(ValueError) if fails else nullcontext(),
        versions.placed(versions[0]),
    ):
        stage(x, fails)
    after = dict(stage.named_parameters(remove_duplicate=False))
    assert (
        all(after[name] is parameter for name, parameter in before.items())
        and len(after) == len(before) == 6
    )
    assert stage.down.weight is stage.up.weight
