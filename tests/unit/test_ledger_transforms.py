"""torch.func and torch.compile do what they do without anyone looking on: under a ledger and under a
coarse one, as a run's are."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from bigtrain_lab.runtime import Ledger


def f(x):
    return (x.sin() * x**2).sum()


def x():
    return torch.linspace(0, 1, 6, dtype=torch.float64)


def gradients_of_each_sample():
    model = nn.Linear(6, 1, dtype=torch.float64)
    weights = {name: torch.ones_like(p) for name, p in model.named_parameters()}

    def loss(weights, sample):
        return functional_call(model, weights, (sample,)).tanh().sum()

    return vmap(grad(loss), in_dims=(None, 0))(weights, torch.eye(6, dtype=torch.float64))["weight"]


TRANSFORMS = {
    "grad": lambda: grad(f)(x()),
    "vjp": lambda: vjp(f, x())[1](torch.ones((), dtype=torch.float64))[0],
    "jvp": lambda: jvp(f, (x(),), (x(),))[1],
    "jvp of grad": lambda: jvp(grad(f), (x(),), (x(),))[1],
    "hessian": lambda: hessian(f)(x()),
    "jacrev": lambda: jacrev(torch.sin)(x()),
    "jacfwd": lambda: jacfwd(torch.sin)(x()),
    "grad of grad": lambda: grad(lambda x: grad(f)(x).square().sum())(x()),
    "vmap of grad": lambda: vmap(grad(f))(torch.stack([x(), 2 * x()])),
    "gradients of each sample": gradients_of_each_sample,
    "vmap": lambda: vmap(torch.sin)(torch.stack([x(), 2 * x()])),
    "batched backwards": lambda: torch.autograd.functional.jacobian(torch.sin, x(), vectorize=True),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("coarse", [False, True])
def test_a_transform_gives_what_it_gives_alone(name, coarse):
    alone = TRANSFORMS[name]()
    with Ledger(coarse=coarse):
        assert torch.equal(TRANSFORMS[name](), alone)


def test_a_compiled_function_runs_as_if_it_were_not_and_the_ledger_is_not_compiled():
    graphs = []

    def compiler(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def seen(function):
        w = torch.ones(50, requires_grad=True)
        with Ledger() as ledger:
            for _ in range(2):
                function(w).backward()
        return ledger.peak_bytes, ledger.peak("activations")

    def function(w):
        return (w.exp() * w.exp().sin()).sum()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compiler)
    compiled(torch.ones(50, requires_grad=True)).backward()
    assert len(graphs) == 1, "without a ledger it is compiled"
    assert seen(compiled) == seen(function) and len(graphs) == 1
