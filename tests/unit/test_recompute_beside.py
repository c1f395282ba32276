"""What a rerun finds beside its arguments: the weights of its forward, and a refusal where
something was changed in place."""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

from bigtrain_lab.core import Impossible
from bigtrain_lab.techniques.checkpoint import (
    checkpoint,
    checkpoint_by_function,
    checkpoint_sequential,
)
from bigtrain_lab.techniques.reversible import ReversibleBlock, ReversibleSequence
from bigtrain_lab.techniques.weight_versions import WeightVersions
from tests.unit.reruns import stepped

WAYS = {
    "module": lambda net, x: checkpoint(net.tail, checkpoint(net.head, x) * net.scale).exp(),
    "method": lambda net, x: checkpoint(net.core, x),
    "partial": lambda net, x: checkpoint(partial(Net.core, net), x),
    "closure": lambda net, x: checkpoint(lambda x: net.core(x), x),
    "default": lambda net, x: checkpoint(lambda x, net=net: net.core(x), x),
    "list in a closure": lambda net, x: checkpoint(
        lambda x, parts=[net.head, net]: parts[1].core(x), x
    ),
    "idea": lambda net, x: checkpoint_by_function(net.core, x),
    "keep-none": lambda net, x: checkpoint_sequential(net.layers(), "keep-none", x),
    "sqrt": lambda net, x: checkpoint_sequential(net.layers(), "sqrt", x),
    "keep-all": lambda net, x: checkpoint_sequential(net.layers(), "keep-all", x),
}


class Net(nn.Module):
    """tail(head(x) * scale), where what is saved depends on weights that are not, such as the
    biases."""

    def __init__(self, way=None):
        super().__init__()
        self.way = way
        self.head, self.tail = (
            nn.Linear(3, 3),
            nn.Sequential(nn.Tanh(), nn.Linear(3, 3), nn.Sigmoid()),
        )
        self.register_buffer("scale", torch.ones(3))

    def core(self, x):
        return self.tail(self.head(x) * self.scale).exp()

    def layers(self):
        return [self.head, lambda x: x * self.scale, self.tail, torch.exp]

    def forward(self, x):
        return WAYS[self.way](self, x) if self.way else self.core(x)


class Streams(nn.Module):
    def __init__(self, way=None):
        super().__init__()
        self.way = way
        self.sequence = ReversibleSequence(
            ReversibleBlock(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 3))
            for _ in range(3)
        )

    def forward(self, x):
        streams = x, 2 * x
        if self.way:
            streams = self.sequence(*streams)
        else:
            for block in self.sequence.blocks:
                streams = block.couple(*streams)
        return streams[0] * streams[1]


def swapped(net, weights, x):
    return functional_call(
        net,
        (
            weights | {"scale": torch.full((3,), 2.0, dtype=torch.float64)}
            if hasattr(net, "scale")
            else weights
        ),
        (x,),
    )


def version(net, weights, x):
    with WeightVersions(net).placed(weights):
        return net(x)


GIVEN = {
    "leaves": lambda w: w,
    "computed": lambda w: {name: 1 * each for name, each in w.items()},
    "constants": lambda w: {name: each.detach() for name, each in w.items()},
}


def gradients(make, way, call, given):
    """Of the input and of each weight that was given; the module's own get none."""
    torch.manual_seed(0)
    net = make(way).double()
    weights = {
        name: (p.detach() + torch.randn_like(p)).requires_grad_()
        for name, p in net.named_parameters()
    }
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    call(net, GIVEN[given](weights), x).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    return [x.grad, *(w.grad for w in weights.values())]


def close(a, b):
    """To rounding; a None where the other has one."""
    return len(a) == len(b) and all(
        x is y or torch.linalg.norm(x - y) <= 1e-12 * torch.linalg.norm(y) for x, y in zip(a, b)
    )


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("call", [swapped, version])
@pytest.mark.parametrize("make,way", [*((Net, way) for way in WAYS), (Streams, "reversible")])
def test_a_rerun_meets_the_weights_that_were_put_in_for_its_forward(make, way, call, given):
    found, right = gradients(make, way, call, given), gradients(make, None, call, given)
    assert right[0].abs().max() > 1e-3 and (right[1] is None) == (given == "constants")
    assert close(found, right)


def test_after_a_rerun_the_module_has_its_own_weights_again():
    net = Net("closure")
    own = dict(net.named_parameters()) | dict(net.named_buffers())
    x = torch.ones(2, 3, requires_grad=True)
    functional_call(net, {name: 2 * p.detach() for name, p in own.items()}, (x,)).sum().backward()
    assert all(p is own[name] for name, p in (*net.named_parameters(), *net.named_buffers()))


def test_a_loop_variable_in_a_closure_is_the_one_of_its_forward():
    """Python looks a closure's variable up when the function runs: the last layer's, in each
    rerun."""
    torch.manual_seed(0)
    layers, factors, found = (
        [nn.Linear(3, 3) for _ in range(3)],
        [torch.tensor(float(k)) for k in range(2, 5)],
        [],
    )
    for call in (checkpoint, lambda fn, x: fn(x)):
        y = x = torch.ones(2, 3, requires_grad=True)
        for layer, factor in zip(layers, factors):
            y = call(lambda y: (layer(y) * factor).sin(), y)
        found.append(
            torch.autograd.grad(y.sum(), [x, *(p for each in layers for p in each.parameters())])
        )
        assert layer is layers[-1] and factor is factors[-1]
    assert all(torch.equal(a, b) for a, b in zip(*found))


# -- changed in place ------------------------------------------------------------------------------

SHIFT, X = torch.ones(6), torch.ones(2, 6, dtype=torch.float64)


def layers_of():
    """x meets no gradient of its own: of the first product autograd saves x alone, and no bias."""
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Sigmoid()]).double()


def of_all(call):
    return lambda layers, x: call(nn.Sequential(*layers), x)


def by_streams(layers, x):
    block = ReversibleBlock(nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:]))
    return sum(ReversibleSequence([block])(x, x))


AGAIN = {  # ways to run layers again in the backward
    "module": of_all(checkpoint),
    "partial": of_all(lambda module, x: checkpoint(partial(module), x)),
    "closure": of_all(lambda module, x: checkpoint(lambda x: module(x), x)),
    "keep-none": lambda layers, x: checkpoint_sequential(layers, "keep-none", x),
    "sqrt": lambda layers, x: checkpoint_sequential(layers, "sqrt", x),
    "reversible": by_streams,
}


@pytest.mark.parametrize("moved", ["0.weight", "0.bias", "2.weight", "2.bias"])
@pytest.mark.parametrize("way", ["module", "partial", "keep-none", "reversible"])
def test_a_weight_that_moved_between_forward_and_backward_is_refused(way, moved):
    layers = layers_of()
    y = AGAIN[way](layers, X).sum()
    with torch.no_grad():
        layers.get_parameter(moved).mul_(3).add_(1)
    with pytest.raises(Impossible, match=r"weight of shape .* was changed in place between the"):
        y.backward()


@pytest.mark.parametrize("way", AGAIN)
def test_a_weight_may_move_once_its_part_is_done(way):
    """As where an optimizer steps each weight as soon as its gradient is there."""
    found = []
    for call in (
        AGAIN[way],
        by_streams_plainly if way == "reversible" else of_all(nn.Module.__call__),
    ):
        layers = layers_of()
        for weight in layers.parameters():
            weight.register_post_accumulate_grad_hook(stepped)
        call(layers, X).sum().backward()
        found.append([*layers.parameters()])
    assert close(*found)


def by_streams_plainly(layers, x):
    y = x + nn.Sequential(*layers[:2])(x)
    return y + x + nn.Sequential(*layers[2:])(y)


@pytest.mark.parametrize("way", AGAIN)
def test_where_nothing_learns_nothing_is_recorded(way):
    layers, x = layers_of().requires_grad_(False), X
    assert not AGAIN[way](layers, x).requires_grad
    assert AGAIN[way](layers, x.clone().requires_grad_()).requires_grad
    layers[2].bias.requires_grad_()
    AGAIN[way](layers, x).sum().backward()
    assert layers[2].bias.grad is not None


@pytest.mark.parametrize("finish", [lambda y: y.sum().backward(), lambda y: None])
@pytest.mark.parametrize("way", AGAIN)
def test_all_goes_with_the_graph_and_without_the_garbage_collector(way, finish):
    x, layers = X.clone().requires_grad_() * 1, layers_of()
    alive = [weakref.ref(x)]
    for layer in layers:
        layer.register_forward_hook(lambda module, x, y: alive.append(weakref.ref(y)))
    gc.disable()
    try:
        y = AGAIN[way](layers, x)
        del x
        assert len(alive) >= 5
        finish(y)
        del y
        assert not any(made() is not None for made in alive)
    finally:
        gc.enable()


BESIDE = {
    "saved": (SHIFT, lambda h: lambda x: (x * h).exp()),
    "not saved by autograd": (SHIFT, lambda h: lambda x: (x + h).exp()),
    "a global": (SHIFT, lambda h: lambda x: (x * SHIFT).exp()),
}


@pytest.mark.parametrize("h, make", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize(
    "call",
    [
        checkpoint,
        lambda fn, x: checkpoint_sequential([torch.sin, fn, torch.sin], "keep-none", x),
    ],
    ids=["module", "keep-none"],
)
def test_a_tensor_beside_the_arguments_that_was_changed_in_place_is_refused(call, h, make):
    """Also where autograd would not save it: the rerun would read it all the same."""
    y = call(make(h), torch.ones(6, requires_grad=True))
    h.mul_(2)
    with pytest.raises(Impossible, match=r"A tensor of shape \(6,\) was changed in place"):
        y.sum().backward()
    h.fill_(1)


def test_an_input_that_changed_between_forward_and_backward():
    x = torch.ones(6, requires_grad=True) * 1
    y = checkpoint(torch.sin, x).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="inplace|in place"):
        y.backward()


def test_what_a_function_makes_or_changes_for_itself_is_not():
    """Its output, changed after it; a tensor of its own in place; a buffer that it fills each
    time."""
    room = torch.zeros(3)

    def layer(x):
        room.copy_(x.detach())
        return (x * room).exp().mul(2).relu_().exp()

    found = []
    for call in (checkpoint, lambda fn, x: fn(x).clone()):
        x = torch.linspace(-1, 1, 3).requires_grad_()
        y = call(layer, x)
        y.mul_(3)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_another_weight_in_the_rerun_is_refused_where_it_cannot_be_put_back():
    holder, x = [nn.Parameter(torch.full((3,), 2.0))], torch.ones(3, requires_grad=True)
    y = checkpoint(lambda x: (x * holder[0]).exp(), x)
    holder[0] = nn.Parameter(torch.full((3,), 3.0))
    with pytest.raises(Impossible, match=r"used another weight of shape \(3,\) when it ran again"):
        y.sum().backward()
