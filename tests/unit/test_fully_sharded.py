"""Ranks that keep a part of every unit learn what one process learns, whatever the way it is used.

Bytes, messages and memory are proved by the plan (test_shard_plan) and by the lab, whose runs are
as predicted; half formats by tests/compose."""

import copy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from bigtrain_lab import Impossible, RankFailed
from bigtrain_lab.checks import ranks_differ
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import LAMB, LARS, DynamicLossScaler
from bigtrain_lab.techniques.checkpoint import checkpoint
from bigtrain_lab.techniques.fully_sharded import FullyShardedDataParallel, NaiveUnit
from bigtrain_lab.techniques.units import units_of

from .threads import backward, on_processes, on_threads

WORDS, WIDTH, STEPS, BACKWARDS = 11, 6, 2, 2


class Layer(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.up, self.down, self.norm = (
            nn.Linear(WIDTH, 7),
            nn.Linear(7, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.way = way

    def inner(self, x):
        return self.down(
            nn.functional.dropout(torch.tanh(self.up(self.norm(x))), 0.2, self.way == "dropout")
        )

    def forward(self, x):
        if self.way == "ours inside":
            return checkpoint(self.inner, x)
        return (
            torch_checkpoint(self.inner, x, use_reentrant=False)
            if self.way == "torch inside"
            else self.inner(x)
        )


class Model(nn.Module):
    """Tied weights, a frozen unit, a parameter of its own, one that nothing uses, a buffer; parts
    used in several ways."""

    def __init__(self, way="", seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.way, self.scale = way, nn.Parameter(torch.rand(3))
        self.embed, self.frozen = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        )
        self.layers = nn.ModuleList(Layer(way) for _ in range(3))
        self.layers[1].norm.weight.requires_grad_(False)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.embed.weight
        self.spare = nn.Linear(2, 1) if way == "unused" else None
        self.register_buffer("shift", torch.rand(WIDTH))
        self.double()

    def forward(self, words):
        x = self.embed(words) + self.shift
        x = x + self.frozen(x)
        for layer in self.layers:
            if self.way == "twice":
                x = x + layer(layer(x) * layer(2 * x))
            elif self.way == "ours around":
                x = x + checkpoint(layer, x)
            elif self.way.endswith("around"):
                x = x + torch_checkpoint(layer, x, use_reentrant="reentrant" in self.way)
            elif self.way != "chain":
                x = x + layer(x)
        if self.way == "chain":
            x = checkpoint(lambda x: self.layers[2](self.layers[1](self.layers[0](x))), x)
        return self.head(x) * self.scale[1]


OPTIMIZERS = {  # each with another way of using the parts
    "dropout": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "ours around": partial(torch.optim.Adam, lr=1e-2),
    "torch around": partial(torch.optim.AdamW, lr=1e-2),
    "ours inside": partial(torch.optim.Adagrad, lr=1e-2),
    "torch inside": partial(torch.optim.RMSprop, lr=1e-2),
    "twice": partial(LAMB, lr=1e-2),
    "chain": partial(LARS, lr=0.1),
    "torch, reentrant around": partial(torch.optim.Adam, lr=1e-2),
    "unused": partial(torch.optim.SGD, lr=0.1),
}


def loss_of(model, rank, step, number):
    """Of a rank in one backward of a step."""
    torch.manual_seed(1000 * step + 10 * number + rank)  # of the dropout too
    words, following = torch.randint(WORDS, (2, 2, 5))
    return cross_entropy(model(words).flatten(0, 1), following.flatten())


def alone(way, ranks):
    """One process that has the samples of all ranks: (weights, norms of the gradient)."""
    model, norms = Model(way), []
    optimizer = OPTIMIZERS[way]([p for p in model.parameters() if p.requires_grad])
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(BACKWARDS):
            for rank in range(ranks):
                (loss_of(model, rank, step, number) / ranks).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        optimizer.step()
    return model, norms


def train(way, group):
    model = FullyShardedDataParallel(
        Model(way, seed=group.rank), group, allow_unused=way == "unused"
    )
    together = {"group": group, "pieces": lambda p: True} if way in ("twice", "chain") else {}
    optimizer, norms = OPTIMIZERS[way](model.parameters(), **together), []
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(BACKWARDS):
            loss_of(model, group.rank, step, number).backward()
        model.finish_gradient_synchronization()
        norms.append(model.clip_grad_norm_(0.3))
        optimizer.step()
    return model, norms


def learnt(group, ways):
    found = {}
    for way in ways:
        model, norms = train(way, group)
        freed = [held.weights_flat.untyped_storage().nbytes() for held in model.replicas.held]
        assert not model.replicas.under_way and not any(freed)
        found |= {f"{way} {name}": value for name, value in model.full_state_dict().items()}
        found[f"{way} norms"] = torch.tensor(norms, dtype=torch.float64)
        with torch.no_grad():
            found[f"{way} read"] = loss_of(model.eval(), 0, 0, 0)
    other = FullyShardedDataParallel(Model(way, seed=9), group)
    other.load_full_state_dict(model.full_state_dict())
    assert all(map(torch.equal, other.parameters(), model.parameters()))
    return found


EVERY = [*OPTIMIZERS]


@pytest.mark.filterwarnings(
    "ignore:None of the inputs"
)  # torch's reentrant checkpoint, read without gradients
@pytest.mark.parametrize(
    "over, ranks, ways",
    [
        (on_threads, 1, EVERY),
        (on_threads, 3, EVERY[:4]),
        (on_threads, 4, EVERY[4:]),
        (on_processes, 2, EVERY[6:8]),
    ],
)
def test_ranks_learn_what_one_process_learns(over, ranks, ways):
    """On each of them: with clipping, over accumulated backwards, from rank 0's weights, whatever
    the way units are used."""
    results = over(partial(learnt, ways=ways), ranks)
    for way in ways:
        model, norms = alone(way, ranks)
        expected = model.state_dict() | {
            "norms": torch.tensor(norms, dtype=torch.float64),
            "read": loss_of(model.eval(), 0, 0, 0).detach(),
        }
        own = [{name: found[f"{way} {name}"] for name in expected} for found in results]
        assert ranks_differ(own, expected) == [], way


def test_ranks_that_use_other_units_are_told_before_a_message_of_another_size_is_sent():
    """Over gloo, which aborts a process that gets one."""

    def program(group):
        layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 9))
        FullyShardedDataParallel(layers, group).module[group.rank](torch.ones(2, 4))

    with pytest.raises(RankFailed, match="used other units"):
        on_processes(program, 2)


def parts_learnt(group, make):
    """(Inputs' gradient, this rank's parts after a step) of three layers that `make` cuts."""
    torch.manual_seed(0)
    layers = [make(nn.Linear(4, 4).double(), group) for _ in range(3)]
    x = torch.linspace(-1, 1, 12).double().view(3, 4).roll(group.rank, 0).requires_grad_()
    out = x
    for layer in layers:
        out = torch.tanh(layer(out))
    out.square().sum().backward()
    for layer in layers:
        if isinstance(layer, FullyShardedDataParallel):
            layer.finish_gradient_synchronization()
    parts = [p for layer in layers for p in layer.parameters()]
    torch.optim.SGD(parts, lr=0.1).step()
    return x.grad, torch.cat([p.detach().flatten() for p in parts])


def test_units_learn_what_naive_ones_learn_and_keep_no_more():
    """A unit of one linear layer: both lay weight and bias in a row."""
    naive, ours = (
        on_threads(partial(parts_learnt, make=make), 4)
        for make in (NaiveUnit, lambda m, group: FullyShardedDataParallel(m, group, units=[m]))
    )
    for found, expected in zip(ours, naive):
        assert found[1].shape == expected[1].shape == (15,)
        assert all(map(torch.allclose, found, expected))


class Branches(nn.Module):
    """A weight is used behind what the call returned first; a loss is left as an attribute;
    arguments and results of several kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.units = nn.ModuleList([nn.Linear(4, 4), Beside(), nn.Linear(4, 4)]).double()

    def forward(self, x):
        given = self.units[1](x={"a": self.units[0](x), "b": [x, None, 3]})
        return self.units[2](given.main).sum() + given.other.sum() + self.units[1].penalty


class Beside(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.spread = (
            nn.Parameter(torch.randn(4, 4)),
            nn.ParameterList([torch.ones(4)]),
        )

    def forward(self, x):
        self.penalty = (self.weight @ self.weight).pow(2).mean()
        return Result(
            x["a"] @ self.weight + x["b"][0], (self.weight * self.spread[0]).tanh() @ self.weight
        )


@dataclass
class Result:
    main: torch.Tensor
    other: torch.Tensor


def test_whatever_a_unit_returns_its_weights_are_there_for_the_backward():
    plain, model, x = (
        Branches(),
        FullyShardedDataParallel(Branches(), Alone()),
        torch.randn(3, 4, dtype=torch.float64),
    )
    plain(x).backward()
    model(x).backward()
    model.finish_gradient_synchronization()
    for p, piece in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(piece.grad.flatten(), p.grad.flatten(), rtol=1e-12, atol=0)
    x.requires_grad_()
    with pytest.raises(Impossible, match="create_graph"):
        torch.autograd.grad(model(x), x, create_graph=True)


class Position(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(9, 8)])

    def forward(self, x):
        return self.weights[0][: x.shape[1]]


class Compiled(nn.Linear):
    def __init__(self, width):
        super().__init__(width, width)
        self.linear = torch.compile(nn.functional.linear, backend="aot_eager")

    def forward(self, x):
        return self.linear(x, self.weight, self.bias)


class Parts(nn.Module):
    """Torch's attention, which reads its parts' weights; a part of a weight that leaves its
    unit."""

    def __init__(self):
        super().__init__()
        self.position, self.attention, self.norm = (
            Position(),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.LayerNorm(8),
        )

    def forward(self, x):
        x = x + self.position(x)
        return self.norm(self.attention(x, x, x)[0])


TORCH_S = {
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2
    ),
    "parts": Parts,
    "lstm": lambda: nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 6, batch_first=True)),
    "in place": lambda: nn.Sequential(
        *(
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Dropout(0.1, inplace=True))
            for _ in range(3)
        )
    ),
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 2)
    ),
    "compiled": lambda: nn.Sequential(Compiled(8), nn.Tanh(), Compiled(8)),
    "bag": lambda: nn.Sequential(nn.Flatten(), nn.Linear(40, 3)),
}


@pytest.mark.parametrize("name", TORCH_S)
def test_torch_s_layers_learn_as_they_do_alone(name):
    torch.manual_seed(0)
    plain, x = TORCH_S[name]().double(), torch.randn(3, 5, 8, dtype=torch.float64)
    model = FullyShardedDataParallel(copy.deepcopy(plain), Alone())
    for module in (plain, model):
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for step in range(2):
            torch.manual_seed(step)
            out = module(x.clone())
            (out[0] if isinstance(out, tuple) else out).pow(2).mean().backward()
            if module is model:
                model.finish_gradient_synchronization()
            optimizer.step()
            optimizer.zero_grad()
    for name, value in model.full_state_dict().items():
        assert torch.allclose(value, plain.state_dict()[name], rtol=1e-12, atol=1e-15), name


def test_units_are_layers_of_lists_and_whoever_has_parameters():
    named = [(len(modules), [*parameters]) for modules, parameters in units_of(Model())]
    layer = ["up.weight", "up.bias", "down.weight", "down.bias", "norm.weight", "norm.bias"]
    assert named == [
        (1, ["scale"]),
        (2, ["embed.weight", "head.bias"]),
        (1, ["frozen.weight", "frozen.bias"]),
        *((1, [f"layers.{number}.{name}" for name in layer]) for number in range(3)),
    ]


def two_linear(**options):
    return FullyShardedDataParallel(
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), Alone(), **options
    )


def trained(model, loss=lambda out: out.sum()):
    loss(model(torch.ones(1, 2))).backward()
    model.finish_gradient_synchronization()
    return model


def with_own_optimizer(model):
    model.optimizer = torch.optim.SGD(model.module.parameters(), 0.1)
    trained(model)
    model.optimizer.step()


class Tied(nn.Sequential):
    """A weight is used where its module is not called."""

    def forward(self, x):
        return nn.functional.linear(super().forward(x), self[1].weight)


class Turned(nn.Sequential):
    def forward(self, x):
        return super().forward(x) @ self[1].weight.mT


@pytest.mark.parametrize("kind", [Tied, Turned])
def test_a_weight_outside_its_unit_s_forward_is_refused_and_a_larger_unit_helps(kind):
    model = kind(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(
        Impossible,
        match=(
            "^1.weight on rank 0 is used outside the forward of its unit, where it is empty: call"
            " the module"
        ),
    ):
        FullyShardedDataParallel(copy.deepcopy(model), Alone())(torch.ones(1, 3))
    x = torch.ones(1, 3)
    whole = copy.deepcopy(model)
    assert torch.equal(FullyShardedDataParallel(whole, Alone(), units=[whole])(x), model(x))


def with_state_asked(model, out):
    out.register_hook(lambda gradient: model.full_state_dict() and None)
    return out.sum()


CHANGES = {
    "0.weight .* and is float32 of shape .3, 2. on cpu, in other memory, version . now": lambda model: (
        setattr(next(model.parameters()), "data", torch.ones(6, 1))
    ),
    "A parameter on rank 0 was written to while": lambda model: model.module[0].bias.data.zero_(),
    "The piece of 0.weight on rank 0 has hooks": lambda model: [
        p.register_hook(torch.abs) for p in model.parameters()
    ],
    "1.weight on rank 0 was .* and is .*, averaged by nobody,": lambda model: setattr(
        model.module[1], "weight", nn.Parameter(torch.ones(2, 3))
    ),
    "0.bias on rank 0 was .* and is missing": lambda model: delattr(model.module[0], "bias"),
    "0.weight on rank 0 was float32 .* and is float64": lambda model: model.double(),
    "0.weight on rank 0 was .* and is float32 .* in other memory": lambda model: setattr(
        model.module[0].weight, "data", torch.ones(3, 2)
    ),
    "0.weight on rank 0 was .* and is .* frozen": lambda model: model.module.requires_grad_(False),
    "0.bias on rank 0 was .* version . .* and is .* version": lambda model: nn.init.zeros_(
        model.module[0].bias
    ),
    "0.weight on rank 0 was .* with a gradient that no piece gets": lambda model: setattr(
        model.module[0].weight, "grad", torch.ones(3, 2)
    ),
    "full_state_dict": lambda model: model.state_dict(),
    "empty between uses: call full_state": lambda model: model.module[1].state_dict(),
    "copy the module before": copy.deepcopy,
    "load_full_state_dict": lambda model: model.module.load_state_dict({}),
    "on rank 0 has the module's own parameters": with_own_optimizer,
    "while a unit is in use": lambda model: trained(model, partial(with_state_asked, model)),
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_what_changes_after_wrapping_is_refused(sentence):
    model = two_linear()
    with pytest.raises(Impossible, match=sentence):
        CHANGES[sentence](model)
        trained(model)


def test_layers_that_each_rank_drops_by_itself_are_refused():
    """Their pieces would meet in one all-gather."""

    class Dropping(nn.ModuleList):
        def forward(self, x, skipped):
            return self[2 - skipped](self[0](x))

    def program(group):
        model = FullyShardedDataParallel(
            Dropping(nn.Linear(2, 2) for _ in range(3)), group, allow_unused=True
        )
        model.replicas.rules.batch = 1  # the order of messages is compared in the first step alone
        model(torch.ones(1, 2), group.rank).sum().backward()
        with pytest.raises(Impossible, match="rank 0: 0F 2F 2B.*; rank 1: 0F 1F 1B"):
            model.finish_gradient_synchronization()

    on_threads(program, 2)


def sparse():
    model = FullyShardedDataParallel(
        nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 1)), Alone()
    )
    model(torch.ones(1, dtype=torch.long)).sum().backward()
    model.finish_gradient_synchronization()


def skipped():
    model = backward(two_linear())
    torch.optim.SGD(model.parameters(), lr=1).zero_grad()
    trained(model)


def clipped_early():
    model = trained(two_linear())
    torch.optim.SGD(model.parameters(), lr=1).zero_grad()
    backward(model).clip_grad_norm_(0.1)


class Hidden(nn.Linear):
    """Its result leaves it in what nobody looks into."""

    def forward(self, x):
        return iter([super().forward(x)])


class Outside(nn.Sequential):
    def forward(self, x):
        return self[1](next(self[0](x)))


def clipped(optimizer, *_):
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)


def clipped_in_a_hook(optimizer):
    optimizer.register_step_pre_hook(clipped)
    optimizer.step()


def summed_by_hand(optimizer):
    sum((2 * p.grad.data).pow(2).sum() for p in optimizer.param_groups[0]["params"])


def projected(optimizer):
    every = optimizer.param_groups[0]["params"]
    optimizer.register_step_post_hook(lambda *_: [p.detach().norm() for p in every])
    optimizer.step()


def unscaled(step):
    """What stands in the place of a scaler, and steps so."""
    return partial(SimpleNamespace, scale=lambda loss: loss, step=step)


def scaled_alone(make):
    def program(group):
        with pytest.raises(Impossible) as told:
            scaler, model = make(), FullyShardedDataParallel(nn.Linear(2, 2).float(), group)
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            model.finish_gradient_synchronization()
            gradient = next(model.parameters()).grad
            assert type(copy.deepcopy(gradient)) is torch.Tensor
            nn.functional.normalize(gradient, dim=0)  # a script's own use, which clips nothing
            scaler.step(torch.optim.SGD(model.parameters(), 0.1))
        return str(told.value)

    raise Impossible(on_threads(program, 2)[0])


def forgotten_finish():
    model = two_linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    for _ in range(4):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "mistake, sentence",
    [
        *(
            (lambda make=make, more=more: FullyShardedDataParallel(make(), Alone(), **more), told)
            for make, more, told in [
                (lambda: nn.Linear(2, 2).requires_grad_(False), {}, "nothing to train"),
                (lambda: nn.LazyLinear(2), {}, "weight, bias have no shape yet"),
                (
                    lambda: nn.ParameterDict(
                        {"weight": torch.ones(2), "phase": torch.ones(2, dtype=torch.complex64)}
                    ),
                    {},
                    "phase is neither",
                ),
                (lambda: backward(nn.Linear(2, 2)), {}, "has a gradient already"),
                (lambda: nn.ParameterList([torch.ones(2)] * 2), {}, "share their memory"),
                (lambda: nn.Linear(2, 2), {"compute_dtype": "half"}, "compute_dtype is 'half'"),
                (lambda: nn.Linear(2, 2), {"units": [nn.Linear(2, 2)]}, "no part of the module"),
                (lambda: nn.Sequential(two_linear()), {}, "pieces already: wrap a module once"),
            ]
        ),
        (sparse, "0.weight on rank 0 has a gradient that is torch.sparse_coo"),
        (
            lambda: trained(
                model := two_linear(), lambda out: model.module[0](torch.ones(1, 2)).sum()
            ),
            "got no gradient, on rank 0: 1.weight, 1.bias",
        ),
        (forgotten_finish, "call finish_gradient_synchronization"),
        (partial(scaled_alone, DynamicLossScaler), "give DynamicLossScaler.* all ranks"),
        (
            partial(scaled_alone, partial(torch.amp.GradScaler, "cpu")),
            "_amp_.* which ask all ranks",
        ),
        *(
            (partial(scaled_alone, unscaled(step)), told)
            for step, told in [
                (clipped, "norm was called on .*take clip_grad_norm_"),
                (clipped_in_a_hook, "norm was called on .*take clip_grad_norm_"),
                (summed_by_hand, "sum was called on .*take clip_grad_norm_"),
                (projected, "norm was called on weights of which other ranks"),
            ]
        ),
        (skipped, "was replaced or dropped on its way"),
        (
            lambda: trained(trained(two_linear())),
            "gets a gradient before the last one was dropped: call the optimizer's zero_grad",
        ),
        (clipped_early, "was used after it had left"),
        (
            lambda: trained(
                FullyShardedDataParallel(Outside(Hidden(2, 3), nn.Linear(3, 2)), Alone())
            ),
            "0.weight on rank 0 got a gradient, and no backward passed",
        ),
    ],
)
def test_what_cannot_be_sharded_or_averaged_is_refused(mistake, sentence):
    with pytest.raises(Impossible, match=sentence):
        mistake()
