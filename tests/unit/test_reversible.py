"""Reversible layers: the gradients of the plain run, in memory that does not grow with depth, and what
the inverse rounds. Then what a rerun finds beside its arguments: the weights of its forward, and a
refusal where something was changed in place."""

import gc
import operator
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call

from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime import Ledger
from bigtrain_lab.techniques.checkpoint import (
    checkpoint,
    checkpoint_by_function,
    checkpoint_sequential,
)
from bigtrain_lab.techniques.reversible import (
    ReversibleBlock,
    ReversibleSequence,
    rounding_by_depth,
)
from bigtrain_lab.techniques.weight_versions import WeightVersions
from tests.unit.reruns import close, stepped

WIDTH, ROWS = 12, 5


def part(dropout=0.0, dtype=torch.float64):
    return nn.Sequential(
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(2 * WIDTH, WIDTH),
    ).to(dtype)


def net(depth=6, **how):
    torch.manual_seed(0)
    return ReversibleSequence(ReversibleBlock(part(**how), part(**how)) for _ in range(depth))


def plain(sequence, x1, x2):
    for block in sequence.blocks:
        x1, x2 = block.couple(x1, x2)
    return x1, x2


def streams(grad=True, dtype=torch.float64):
    torch.manual_seed(1)
    return [torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=grad) for _ in range(2)]


def trained(
    forward, sequence, x, loss=lambda y1, y2: (y1.cos() * y2.sin()).sum() + y2.square().mean()
):
    sequence.zero_grad()
    torch.manual_seed(7)
    y = forward(sequence, *x)
    drawn = torch.rand(2)
    loss(*y).backward()
    found = {
        "y1": y[0].detach(),
        "y2": y[1].detach(),
        **{name: p.grad for name, p in sequence.named_parameters()},
        **{f"x{i}": t.grad for i, t in enumerate(x) if t.requires_grad and t.is_leaf},
    }
    return found, torch.cat([drawn, torch.rand(2)])


CASES = {  # blocks, whether the streams have gradients, what else
    "plain": lambda: (net(), True, {}),
    "dropout": lambda: (net(dropout=0.3), True, {}),
    "streams without a gradient": lambda: (net(), False, {}),
    "dropout, streams without a gradient": lambda: (net(dropout=0.3), False, {}),
    "one stream alone": lambda: (net(4), True, {"loss": lambda y1, y2: y1.square().sum()}),
    "shared functions": lambda: (
        ReversibleSequence(
            [
                ReversibleBlock(one := part(), part()),
                ReversibleBlock(part(), one),
                ReversibleBlock(one, one),
            ]
        ),
        True,
        {},
    ),
    "without weights": lambda: (
        ReversibleSequence(
            [
                ReversibleBlock(torch.sin, torch.round),
                ReversibleBlock(lambda x: x.detach() * 2, part()),
            ]
        ),
        True,
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_plain_run(case):
    sequence, grad, options = CASES[case]()
    (found, drawn), (expected, expected_drawn) = (
        trained(f, sequence, streams(grad), **options) for f in (lambda s, *x: s(*x), plain)
    )
    assert [name for name in found if found[name] is None] == [
        name for name in expected if expected[name] is None
    ]
    assert not tensors_differ(
        *({name: t for name, t in all_of.items() if t is not None} for all_of in (found, expected))
    )
    assert torch.equal(drawn, expected_drawn)
    assert torch.equal(found["y1"], expected["y1"]) and torch.equal(found["y2"], expected["y2"])


def test_under_autocast():
    sequence = net(3, dtype=torch.float32)

    def outcome(run):
        x = streams(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            y = run(*x)
        sum(t.sum() for t in y).backward()
        return dict(enumerate(t.grad for t in x))

    assert not tensors_differ(
        outcome(sequence), outcome(lambda *x: plain(sequence, *x)), tolerance=1e-2
    )
    assert tensors_differ(
        outcome(sequence), outcome(lambda *x: plain(sequence.float(), *x)), tolerance=1e-12
    ), "bfloat16 rounds"


def peak_of_saved(run, sequence):
    ledger, x = Ledger(coarse=True), streams(dtype=torch.float32)
    ledger.holdings = lambda: {"weights": list(sequence.parameters()), "inputs": x}
    with ledger:
        y1, y2 = run(sequence, *x)
        (y1 * y2).sum().backward()
    return ledger.peak("activations") + ledger.peak("recomputed")


def test_activation_bytes_are_equal_at_depth_4_and_64():
    shallow, deep = net(4, dtype=torch.float32), net(64, dtype=torch.float32)
    reversible = [peak_of_saved(lambda s, *x: s(*x), sequence) for sequence in (shallow, deep)]
    assert reversible[0] == reversible[1] > 0
    kept = [peak_of_saved(plain, sequence) for sequence in (shallow, deep)]
    assert kept[1] > 12 * kept[0] > 12 * reversible[0]


def test_rounding_grows_with_depth_and_falls_with_precision():
    errors = rounding_by_depth(net(16, dtype=torch.float32), *streams(False))
    assert [len(of) for of in errors.values()] == [16] * 3
    double, single, half = errors.values()
    assert all(of[0] < of[-1] for of in errors.values())
    for of, eps in zip((double, single, half), (2**-53, 2**-24, 2**-8)):
        assert 0.1 * eps < of[0] < 4 * eps, "one block undone: about a rounding of each stream"
    assert double[-1] < 1e-13 < 1e-9 < single[-1] < 1e-4 < half[-1]


@pytest.mark.parametrize(
    "f, sentence",
    [
        (nn.ReLU(inplace=True), "ReLU changed its input in place, so it cannot be undone"),
        (
            nn.Linear(WIDTH, 1),
            r"Linear made shape \(5, 1\) of shape \(5, 12\): F and G must keep the shape",
        ),
        (
            lambda x: None,
            "returned nothing: F and G are added to a stream, so let each return one tensor",
        ),
        (
            lambda x: (x, x),
            "returned a tuple: F and G are added to a stream, so let each return one tensor",
        ),
    ],
)
def test_functions_that_cannot_be_undone(f, sentence):
    x = streams(dtype=torch.float32)
    for one in (ReversibleBlock(f, torch.sin), ReversibleBlock(torch.sin, f)):
        with pytest.raises(Impossible, match=sentence):
            one(*x)
    with torch.no_grad(), pytest.raises(Impossible, match=sentence):
        ReversibleBlock(f, torch.sin)(*x)


def summed(x1, x2):
    return sum(net(1)(x1, x2)).sum()


BAD = {
    r"shapes \(5, 11\) and \(5, 12\): give both the same, such as x.chunk": lambda x1, x2: summed(
        x1[:, 1:], x2
    ),
    "The streams are float64 and float32, .*: give both one type": lambda x1, x2: summed(
        x1, x2.float()
    ),
    r"call loss.backward\(\)": lambda x1, x2: torch.autograd.grad(summed(x1, x2), x1),
    "leaves no graph, so create_graph cannot have one": lambda x1, x2: summed(x1, x2).backward(
        create_graph=True
    ),
}


@pytest.mark.filterwarnings("ignore:Using backward")  # which says that create_graph makes a cycle
@pytest.mark.parametrize("sentence", BAD)
def test_other_bad_input(sentence):
    with pytest.raises(Impossible, match=sentence):
        BAD[sentence](*streams())


# -- a rerun meets the weights of its forward ------------------------------------------------------

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
    """In the middle of a graph."""

    def __init__(self, way=None):
        super().__init__()
        self.way = way
        self.sequence = ReversibleSequence(
            ReversibleBlock(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 3))
            for _ in range(3)
        )

    def forward(self, x):
        run = self.sequence if self.way else partial(plain, self.sequence)
        return operator.mul(*run(x, 2 * x))


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
    """Of the input and of each weight that was given; the module's own get none, and are in their
    places again."""
    torch.manual_seed(0)
    net = make(way).double()
    own = [*net.parameters(), *net.buffers()]
    weights = {
        name: (p.detach() + torch.randn_like(p)).requires_grad_()
        for name, p in net.named_parameters()
    }
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    call(net, GIVEN[given](weights), x).sum().backward()
    assert all(map(operator.is_, own, [*net.parameters(), *net.buffers()]))
    assert all(p.grad is None for p in net.parameters())
    return [x.grad, *(w.grad for w in weights.values())]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("call", [swapped, version])
@pytest.mark.parametrize("make,way", [*((Net, way) for way in WAYS), (Streams, "reversible")])
def test_a_rerun_meets_the_weights_that_were_put_in_for_its_forward(make, way, call, given):
    found, right = gradients(make, way, call, given), gradients(make, None, call, given)
    assert right[0].abs().max() > 1e-3 and (right[1] is None) == (given == "constants")
    assert close(found, right)


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
