"""checkpoint(fn): the same bits as without it, in every form of call, and the memory really let go
of."""

import random
from collections import namedtuple
from contextlib import nullcontext
from functools import partial
from itertools import product
from operator import call as plain

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime.memory.ledger import Ledger
from bigtrain_lab.techniques.checkpoint import (
    checkpoint,
    checkpoint_by_function,
    checkpoint_sequential,
)
from bigtrain_lab.techniques.saved import random_state, set_random_state
from tests.unit.reruns import Square, penalised, same

Pair = namedtuple("Pair", "left right")
SEEDED = random_state("cpu")


torch_s = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.4), nn.LayerNorm(16), nn.Linear(16, 6), nn.Tanh()
    ).to(dtype)


def tensors_in(value):
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def trained(call, form):
    """All that a step shows: outputs, gradients of weights and inputs, and the random numbers drawn
    after it."""
    module = net()
    fn, args, kwargs = form(module)
    set_random_state(SEEDED)
    outputs = tensors_in(call(fn, *args, **kwargs))
    between = torch.rand(3) * random.random() * np.random.rand()
    sum((o.float() * (o.detach().float() + 1)).sum() for o in outputs if o.requires_grad).backward()
    found = [
        *(o.detach() for o in outputs),
        *(p.grad for p in module.parameters()),
        *(x.grad for x in tensors_in((args, kwargs)) if x.is_leaf),
    ]
    return found, between, torch.rand(3) * random.random() * np.random.rand()


def leaf(*shape, grad=True):
    return torch.linspace(-1, 1, 24).reshape(*(shape or (4, 6))).requires_grad_(grad)


FORMS = {
    "one tensor": lambda m: (m, (leaf(),), {}),
    "no input has a gradient": lambda m: (m, (leaf(grad=False),), {}),
    "not a leaf": lambda m: (m, (leaf() * 2,), {}),
    "the same tensor twice": lambda m: (lambda a, b: m(a) * b, (leaf(),) * 2, {}),
    "a mask by its name": lambda m: (
        lambda x, *, mask: m(x) * mask,
        (leaf(),),
        {"mask": leaf(grad=False) > 0},
    ),
    "a tensor with a gradient by its name": lambda m: (
        lambda x, scale: m(x) * scale,
        (leaf(),),
        {"scale": leaf()},
    ),
    "no tensors at all": lambda m: (
        lambda n, name, off=None: m(torch.ones(n, 6)) * len(name),
        (3, "abc"),
        {"off": None},
    ),
    "numbers beside tensors": lambda m: (
        lambda x, p, flag: F.dropout(m(x), p) if flag else x,
        (leaf(), 0.3, True),
        {},
    ),
    "nested": lambda m: (
        lambda d, pair: m(d["x"][0]) * pair.left + pair.right,
        ({"x": [leaf()]}, Pair(leaf(), leaf(grad=False))),
        {},
    ),
    "integers": lambda m: (lambda x, i: m(x)[i] * x[i], (leaf(), torch.tensor([2, 0, 2])), {}),
    "several outputs": lambda m: (lambda x: (m(x), {"b": x.exp(), "n": 3}), (leaf(),), {}),
    "an output that is the input": lambda m: (lambda x: (x, m(x)), (leaf() * 2,), {}),
    "an output without a gradient": lambda m: (lambda x: (m(x), x.argmax()), (leaf(),), {}),
    "outputs that are views": lambda m: (lambda x: m(x).exp().split(3, dim=1), (leaf(),), {}),
    "an output not used": lambda m: (lambda x: (m(x), x.exp().sin().detach()), (leaf(),), {}),
    "a part without gradients": lambda m: (
        lambda x: m(x) * torch.no_grad()(m.forward)(x),
        (leaf(),),
        {},
    ),
    "random numbers of its own": lambda m: (
        lambda x: m(x) * torch.rand_like(x) * random.random() + torch.randn(6) * np.random.rand(),
        (leaf(),),
        {},
    ),
    "an in-place change inside": lambda m: (
        lambda x: (m(x) + 1).mul_(2).add_(x).exp_(),
        (leaf(),),
        {},
    ),
    "a list that it appends to": lambda m: (
        lambda xs: (xs.append(xs[0].sin()), m(xs[0]) * xs[-1])[1],
        ([leaf()],),
        {},
    ),
    "a bound method": lambda m: (m.forward, (leaf(),), {}),
    "an argument called fn": lambda m: (lambda x, fn: m(x) * fn, (leaf(),), {"fn": 3}),
    "a saved tensor asked for twice": lambda m: (lambda x: Square.apply(x.exp()), (leaf(),), {}),
    "gradients of its own": lambda m: (penalised, (leaf(),), {}),
    "gradients through a checkpoint": lambda m: (
        lambda x: penalised(x, partial(checkpoint, lambda x: (x.sin() * x).exp())),
        (leaf(),),
        {},
    ),
}


def inside(outer, inner):
    """One call inside another's."""
    return lambda fn, /, *args, **kwargs: outer(
        lambda *args, **kwargs: inner(fn, *args, **kwargs), *args, **kwargs
    )


@pytest.mark.parametrize(
    "form, call",
    [
        *product(FORMS, [checkpoint, inside(checkpoint, inside(checkpoint, checkpoint))]),
        *product(  # by the function, and beside torch's
            ["one tensor", "not a leaf", "outputs that are views"],
            [
                checkpoint_by_function,
                inside(checkpoint, checkpoint_by_function),
                inside(checkpoint_by_function, checkpoint),
                inside(checkpoint, torch_s),
                inside(torch_s, checkpoint),
            ],
        ),
    ],
)
def test_bits_are_those_of_the_plain_run(form, call):
    (found, *drawn), (expected, *expected_drawn) = (
        trained(each, FORMS[form]) for each in (call, plain)
    )
    assert same(found, expected)
    assert same(drawn, expected_drawn), "numbers drawn after it are not those of the plain run"
    assert any(g is not None and g.abs().sum() for g in found)


class Writes(nn.Module):
    """Its buffers count in the output and change in each forward; a weight is used in two views."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 12))
        self.norm, self.bare = nn.BatchNorm1d(12), nn.BatchNorm1d(12)
        self.weight = nn.Parameter(torch.rand(12, 3))
        self.register_buffer("calls", torch.ones(()))

    def forward(self, x):
        self.calls += self.training
        x, (weight, bias, *running, _) = self.norm(self.first(x)), self.bare.state_dict().values()
        x = F.batch_norm(x, *running, weight, bias, self.training)  # no count tells of it
        halves = [part @ half for part, half in zip(x.chunk(2, 1), self.weight.chunk(2))]
        return torch.cat(halves, 1).sin() * self.calls


@pytest.mark.parametrize(
    "call",
    [
        checkpoint,
        inside(checkpoint, checkpoint),
        checkpoint_by_function,
        lambda layers, x: checkpoint_sequential(layers, "keep-none", x),
    ],
)
def test_buffers_that_fn_writes_move_once_and_a_rerun_finds_them_as_they_were(call):
    def learnt(call):
        torch.manual_seed(0)
        model, x = nn.Sequential(Writes(), Writes(), Writes()), leaf()
        for _ in range(2):
            loss = call(model, x).square().sum()
            model.eval()  # between forward and backward
            loss.backward()
            model.train()
        return [*model.state_dict().values(), *(p.grad for p in model.parameters()), x.grad]

    assert same(learnt(call), learnt(plain))


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.sin else result


@pytest.mark.parametrize(
    "mode",
    [
        Doubled,
        partial(torch.autocast, "cpu", torch.bfloat16),
        torch.autograd.graph.save_on_cpu,  # arguments wait elsewhere
    ],
)
@pytest.mark.parametrize("forward, backward", [(True, False), (False, True), (True, True)])
def test_function_modes_and_autocast_are_those_of_the_forward(forward, backward, mode):
    """A precision policy is such a mode: the rerun is under it exactly where the forward was."""
    linear = net()[0]

    def slope(call):
        x = leaf()
        with mode() if forward else nullcontext():
            y = call(lambda x: torch.sin(linear(x)).exp(), x * 1).sum()
        with mode() if backward else nullcontext():
            y.backward()
        return x.grad

    assert torch.equal(slope(checkpoint), slope(plain))


def test_the_rerun_stops_at_the_last_tensor_it_needs():
    done = []

    def fn(x):
        y = x.exp()
        done.append("saved")
        y = y + 1
        done.append("end")
        return y

    checkpoint(fn, leaf()).sum().backward()
    assert done == ["saved", "end"], "exp saved its result, and the rerun went on"


def test_an_except_in_fn_does_not_catch_the_stop():
    def fn(x):
        try:
            return x.exp()
        except Exception:
            return x.sin().cos()

    x = leaf()
    checkpoint(fn, x).sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_the_function_gives_no_gradient_to_weights_behind_inputs_without_one():
    linear = nn.Linear(6, 2)
    assert not checkpoint_by_function(linear, leaf(grad=False)).requires_grad
    assert checkpoint(linear, leaf(grad=False)).requires_grad


def test_without_gradients_it_only_calls():
    module = net()
    with torch.no_grad():
        assert checkpoint(lambda x: x.add_(1), torch.zeros(2)).sum() == 2
        assert not checkpoint(module, leaf()).requires_grad
    with torch.inference_mode():
        assert checkpoint(module, leaf(grad=False)).is_inference()


def test_what_raises_in_the_rerun_is_raised_and_the_graph_is_as_it_was():
    raises = []

    def fn(x):
        if raises:
            raise KeyError("mine")
        torch.rand(1)
        return x.exp().sin()

    y = checkpoint(fn, leaf())
    raises.append(1)
    state = torch.get_rng_state()
    with pytest.raises(KeyError, match="mine"):
        y.sum().backward(retain_graph=True)
    assert torch.equal(torch.get_rng_state(), state)
    raises.clear()
    y.sum().backward()


@pytest.mark.parametrize(
    "second, sentence",
    [
        (
            lambda x: x[:2].exp(),
            (
                r"tensor 0 that autograd saves was float32 of shape \(4, 6\) on cpu, and is now"
                r" float32 of shape \(2, 6\) on cpu"
            ),
        ),
        (lambda x: x.double().exp(), "was float32 .* and is now float64"),
        (lambda x: x.to("meta").exp(), "on cpu, and is now float32 .* on meta"),
        (lambda x: x + 1, "saved 0 tensors when it ran again, and 1 before"),
    ],
)
def test_a_function_that_does_something_else_the_second_time(second, sentence):
    ways = iter([lambda x: x.exp(), second])
    y = checkpoint(lambda x: next(ways)(x).sum(), leaf())
    with pytest.raises(Impossible, match=sentence):
        y.backward()


BAD = {
    r"bump changed args\[0\] in place, .* write the result to a new tensor": lambda: checkpoint(
        bump, leaf(grad=False), {"m": leaf()}
    ),
    r"changed kwargs\['mask'\]\['m'\]\[0\] in place": lambda: checkpoint(
        lambda x, *, mask: x * mask["m"][0].mul_(2), leaf(), mask={"m": [torch.ones(6)]}
    ),
    "returned nothing.*: return the result": lambda: checkpoint(lambda x: None, leaf()),
    # plain autograd refuses this; hooks switch its check off, and the gradient would be wrong
    r"changed a float32 of shape \(4, 6\) on cpu in place": lambda: (
        checkpoint(lambda x: (x.exp().mul_(2) + 1).sin(), leaf()).sum().backward()
    ),
}


def bump(x, mask):
    return x.add_(1) * mask["m"]


@pytest.mark.parametrize("sentence", BAD)
def test_bad_functions_are_a_sentence(sentence):
    with pytest.raises(Impossible, match=sentence):
        BAD[sentence]()


# -- memory ----------------------------------------------------------------------------------------


def test_the_ledger_tells_arguments_from_what_the_rerun_makes():
    layers, x = (
        nn.ModuleList(
            [
                nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU())
                for _ in range(5)
            ]
        ),
        torch.ones(4, 8),
    )

    def peaks(call):
        with Ledger(layers) as ledger:
            h = x
            for layer in layers:
                h = call(layer, h)
            h.sum().backward()
            assert ledger.now("activations") == ledger.now("recomputed") == 0
        return ledger.peak("activations"), ledger.peak("recomputed")

    state = 4 * 8 * 4
    assert peaks(plain) == (
        (3 * 5 - 1) * state,
        0,
    )  # each layer's input, tanh(.) and what gelu is of; x itself is an input
    assert peaks(checkpoint) == (4 * state, 2 * state)


@pytest.mark.gpu
def test_bits_on_a_gpu_with_dropout_and_autocast():
    def step(call):
        module = net().cuda()
        torch.manual_seed(7)
        x = leaf().detach().cuda().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            y = call(lambda x: module(x) * torch.rand_like(x) * torch.rand(6).cuda(), x)
        drawn = torch.rand(2, device="cuda")
        y.float().sum().backward()
        return [
            x.grad,
            *(p.grad for p in module.parameters()),
            drawn,
            torch.rand(2, device="cuda"),
            torch.rand(2),
        ]

    torch.use_deterministic_algorithms(True)
    try:
        assert same(step(checkpoint), step(plain))
    finally:
        torch.use_deterministic_algorithms(False)
