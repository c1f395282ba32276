"""A chain of layers under a plan: the plain run's bits, the plan's own operations, the plan's own
bytes."""

from contextlib import contextmanager, nullcontext
from functools import partial
from operator import call as alone

import pytest
import torch
from torch import nn

from bigtrain_lab import Impossible
from bigtrain_lab.models import GPTConfig, Noise
from bigtrain_lab.models.blocks import Block
from bigtrain_lab.models.gpt import initialise
from bigtrain_lab.order.recompute.plan import A, B, Chain, F, Op, live, peak_bytes, plan_of
from bigtrain_lab.runtime import Ledger
from bigtrain_lab.techniques.checkpoint import checkpoint, checkpoint_sequential, selective, weigh
from bigtrain_lab.techniques.precision_policy import Policy
from tests.unit.reruns import Square, penalised, same

WIDTHS = [6, 20, 9, 30, 4, 16, 8, 5]
CONFIG = GPTConfig(layers=4, width=16, heads=2, sequence=12, dropout=0.2)


def unequal():
    """Layers of all sorts: some save their input, some their output, some nothing of their own."""
    torch.manual_seed(0)
    made = [
        nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Dropout(0.3))
        for a, b in zip(WIDTHS, WIDTHS[1:])
    ]
    return nn.ModuleList(
        [
            *made[:3],
            nn.Tanh(),
            made[3],
            nn.Dropout(0.5),
            nn.Tanh(),
            *made[4:],
            nn.Linear(5, 3),
            nn.Tanh(),
        ]
    )


def blocks(config=CONFIG):
    class Layer(nn.Module):
        def __init__(self, i):
            super().__init__()
            self.block = Block(config, f"layers.{i}")
            initialise(self, config.layers, i)

        def forward(self, x):
            return self.block(x, Noise(3, 0, 0))

    return nn.ModuleList(map(Layer, range(config.layers)))


CHAINS = {"MLP": (unequal, (7, 6)), "GPT": (blocks, (2, 12, 16))}
ORDERS = {
    "mixed": lambda n: [A(0), *map(F, range(1, n)), *map(B, reversed(range(1, n))), F(0), B(0)],
    "sweeps": lambda n: [
        *map(A, range(n - 1)),
        F(n - 1),
        B(n - 1),
        *(step for i in reversed(range(n - 1)) for step in (*map(A, range(i)), F(i), B(i))),
    ],
}
PLANS = [
    "keep-all",
    "keep-none",
    "every-2",
    "every-3",
    "sqrt",
    "halving",
    "revolve",
    "optimal",
    *ORDERS,
]


def operations(plan, chain):
    least = peak_bytes(plan_of("keep-none", chain), chain)
    budget = (
        (least + peak_bytes(plan_of("keep-all", chain), chain)) // 2
        if plan in ("optimal", "revolve")
        else None
    )
    return plan_of(ORDERS[plan](chain.layers) if plan in ORDERS else plan, chain, budget)


def start(shape, grad=True):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).requires_grad_(grad)


def by_plan(plan, layers, x, **options):
    return checkpoint_sequential(layers, plan, x, **options)


def run_plain(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def trained(layers, x, forward):
    layers.zero_grad()
    torch.manual_seed(5)
    y = forward(x)
    between = torch.rand(2)
    (y.square().sum() + y.exp().mean()).backward()
    return [y.detach(), between, torch.rand(2), *(p.grad for p in layers.parameters())]


def saved(levels):
    return levels.get("activations", 0) + levels.get("recomputed", 0)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", CHAINS)
def test_bits_operations_and_bytes_are_the_plan_s(name, plan):
    make, shape = CHAINS[name]
    layers, x = make(), start(shape)
    chain = weigh(layers, x)
    ops = operations(plan, chain)
    expected = trained(layers, x, lambda x: run_plain(layers, x)) + [x.grad]

    ledger, done, after, inside = Ledger(coarse=True), [], [], []
    ledger.holdings = lambda: {"weights": list(layers.parameters())}

    @contextmanager
    def span(action):
        done.append(action)
        ledger.begin()
        yield
        before = after[-1] if after else 0
        kinds, _, rows = ledger.end()
        readings = [saved(ledger.before | dict(zip(kinds, row))) for row in rows]
        after.append(saved({kind: ledger.now(kind) for kind in ("activations", "recomputed")}))
        assert max(readings, default=0) <= max(before, after[-1]), (
            f"{action} saves what it does not keep"
        )
        inside.extend(readings)

    x.grad = None
    with ledger:
        found = trained(layers, x, lambda x: checkpoint_sequential(layers, ops, x, span=span))
    found.append(x.grad)
    assert same(found, expected)
    assert (done, after) == ([op.action for op in ops], live(ops, chain))
    assert max(inside) == peak_bytes(ops, chain) and after[-1] == 0


def in_the_middle_of_a_graph(chain, layers, x):
    h = layers[-1](x).exp()
    return chain(layers[:-1], h).cos() * h.sum()


def beside_a_graph(chain, layers, x):
    c = layers[0](x.detach()).exp()
    return chain([lambda x: (x * c).tanh()] * 3, x)


class Two(nn.Module):
    """(a, ids, b) -> (b, ids, W a): a tuple of tensors, one of them integers, passes through."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4) * 0.5)

    def forward(self, state):
        a, ids, b = state
        return b.exp(), ids, (a @ self.weight)[ids]


def sharing(linear):
    return nn.ModuleList([linear, nn.Tanh(), linear, linear])


CASES = {  # where a chain is, and of what -> how, its layers, x
    "x without a gradient": lambda: (alone, unequal(), start((7, 6), grad=False)),
    "in the middle of a graph": lambda: (
        in_the_middle_of_a_graph,
        unequal().append(nn.Linear(2, 6)),
        start((7, 2)),
    ),
    "beside a graph": lambda: (beside_a_graph, sharing(nn.Linear(6, 6)), start((2, 6))),
    "inside a checkpoint": lambda: (
        lambda chain, layers, x: checkpoint(lambda x: chain(layers, x), x),
        unequal(),
        start((7, 6)),
    ),
    "checkpoints inside": lambda: (
        lambda chain, layers, x: chain([partial(checkpoint, layer) for layer in layers], x),
        unequal(),
        start((7, 6)),
    ),
    "gradients of its own": lambda: (
        lambda chain, layers, x: chain(
            [
                nn.Tanh(),
                lambda x: Square.apply(x.exp()),
                partial(penalised, fn=lambda x: (nn.functional.dropout(x, 0.4).sin() * x).exp()),
                nn.Tanh(),
            ],
            x,
        ),
        unequal(),
        start((2, 3)),
    ),
    "shared weights": lambda: (alone, sharing(nn.Linear(6, 6)), start((2, 6))),
    "tuples": lambda: (
        lambda chain, layers, x: chain(
            [*layers, lambda state: state[0] * state[2]], (x, torch.tensor([2, 0, 1]), x.cos())
        ),
        nn.ModuleList([Two() for _ in range(5)]),
        start((3, 4)),
    ),
    "integers in front": lambda: (
        alone,
        nn.ModuleList([nn.Embedding(10, 6), nn.Linear(6, 2), nn.Tanh()]),
        torch.tensor([[1, 4, 1]]),
    ),
}


@pytest.mark.parametrize("plan", ["keep-all", "every-3", "keep-none", "optimal"])
@pytest.mark.parametrize("case", CASES)
def test_bits_wherever_a_chain_is(case, plan):
    how, layers, x = CASES[case]()
    found = []
    for chain in (partial(by_plan, plan, budget_bytes=10_000), run_plain):
        x.grad = None
        found.append([*trained(layers, x, partial(how, chain, layers)), x.grad])
    assert same(*found)


@pytest.mark.parametrize(
    "context", [lambda: torch.autocast("cpu", torch.bfloat16), lambda: Policy(torch.bfloat16)]
)
def test_under_autocast_and_a_function_mode_left_before_the_backward(context):
    layers, x = unequal(), start((7, 6))

    def under(context, chain):
        def forward(x):
            with context():
                return chain(layers, x)

        x.grad = None
        return [each.float() for each in (*trained(layers, x, forward), x.grad)]

    expected = under(context, run_plain)
    assert same(under(context, partial(by_plan, "keep-none")), expected)
    assert same(under(context, lambda layers, x: checkpoint(run_plain, layers, x)), expected)
    assert not same(under(nullcontext, run_plain), expected)


def test_without_gradients_every_layer_runs_once():
    layers, seen = unequal().eval(), []
    with torch.no_grad():
        y = checkpoint_sequential(
            [*layers, lambda x: (seen.append(1), x)[1]], "keep-none", start((7, 6))
        )
    assert torch.equal(y, run_plain(layers, start((7, 6)))) and seen == [1] and not y.requires_grad


GRAPHS = {  # all that a plain graph answers: the gradients of x and of all weights
    "torch.autograd.grad": lambda y, at: torch.autograd.grad(y, at),
    "twice": lambda y, at: [
        *torch.autograd.grad(y, at, retain_graph=True),
        *torch.autograd.grad(y, at),
    ],
    "thrice, the first one for a part": lambda y, at: [
        *torch.autograd.grad(y, at[-3:], retain_graph=True),
        *torch.autograd.grad(y, at, retain_graph=True),
        *torch.autograd.grad(y, at[:2]),
    ],
    "backward(inputs=)": lambda y, at: (y.backward(inputs=at[:3]), [t.grad for t in at])[1],
    "a backward of a backward": lambda y, at: torch.autograd.grad(
        sum(g.square().sum() for g in torch.autograd.grad(y, at, create_graph=True)), at
    ),
    "what a node saved": lambda y, at: [
        y.grad_fn.next_functions[0][0]._saved_self,
        *torch.autograd.grad(y, at),
    ],
}


@pytest.mark.parametrize("plan", [*PLANS, "checkpoint"])
@pytest.mark.parametrize("ask", GRAPHS.values(), ids=GRAPHS)
def test_every_backward_is_the_plain_graph_s(ask, plan):
    layers, found = unequal(), []
    again = partial(checkpoint, run_plain)
    if plan != "checkpoint":
        again = partial(by_plan, operations(plan, weigh(layers, start((7, 6)))))
    for chain in (run_plain, again):
        layers.zero_grad()
        torch.manual_seed(5)
        x = start((7, 6))
        found.append(
            [
                g if g is None else g.clone()
                for g in ask(chain(layers, x).square().sum(), [x, *layers.parameters()])
            ]
        )
    assert same(*found)


def test_hooks_of_a_shared_weight_run_once_with_the_sum():
    linear, seen = nn.Linear(6, 6), []
    linear.weight.register_hook(lambda g: seen.append(g.clone()))
    checkpoint_sequential([linear, nn.Tanh(), linear], "keep-none", start((2, 6))).sum().backward()
    assert len(seen) == 1 and torch.equal(seen[0], linear.weight.grad)


def test_layers_below_the_first_that_has_a_gradient_do_not_run_again():
    runs = []
    layers = [lambda x, i=i: (runs.append(i), x * 2)[1] for i in range(3)] + [
        nn.Linear(6, 6),
        nn.Tanh(),
    ]
    checkpoint_sequential(layers, "every-2", start((2, 6), grad=False)).sum().backward()
    assert runs == [0, 1, 2, 2]  # the last makes x_3 for the linear layer


@pytest.mark.parametrize(
    "layers, plan, sentence",
    [
        (
            [nn.Linear(6, 6), nn.ReLU(inplace=True)],
            "keep-all",
            "Layer 1 changed its input in place.*: let it write its result to a new tensor",
        ),
        (
            [nn.Linear(6, 6), lambda x: None],
            "keep-all",
            "Layer 1 returned nothing: between layers travels a tensor",
        ),
        ([lambda x: [x]], "keep-all", "Layer 0 returned a list"),
        ([nn.Linear(6, 6)] * 2, [F(0), F(1), B(1)], r"backward of layer 0 is missing"),
        (
            [nn.Linear(6, 6)] * 2,
            [Op(A(0), ()), Op(F(1), ()), Op(B(1), ()), Op(F(0), ()), Op(B(0), ())],
            "needs x_0, which is neither kept nor just made",
        ),
        (
            [nn.Linear(6, 6)] * 2,
            [Op(A(0), (0, 2)), Op(F(1), (0,)), Op(B(1), (0,)), Op(F(0), ()), Op(B(0), ())],
            "keeps x_2, which is not there",
        ),
        (
            [nn.Linear(6, 6)] * 2,
            [A(0), A(0), F(1), B(1), F(0), B(0)],
            "runs a layer a second time before the last one has run",
        ),
        ([], "keep-all", "layer"),
        ([nn.Linear(6, 6)] * 3, "optimal", "budget"),
        ([nn.Tanh()], "selective", "Nothing in Tanh has a method 'core' to run again"),
        (
            [nn.Tanh()] * 5,
            2,
            (
                'plan is the number 2: what torch calls 2 segments is here "every-3", 3 layers to'
                " one kept input"
            ),
        ),
        ([nn.Tanh()] * 2, 0, 'plan is of type int: give a name such as "sqrt"'),
        ([nn.Tanh()] * 2, True, 'plan is of type bool: give a name such as "sqrt"'),
        ([nn.Tanh()] * 2, None, "plan is of type NoneType: give a name"),
        ([nn.Tanh()] * 2, torch.ones(2), "plan is of type Tensor: give a name"),
    ],
)
def test_bad_chains_are_a_sentence(layers, plan, sentence):
    with pytest.raises(Impossible, match=sentence):
        checkpoint_sequential(layers, plan, start((7, 6)))


@pytest.mark.parametrize(
    "plan, budget, sentence",
    [
        ("optimal", 100, "below the smallest peak"),
        ("keep-none", -1, "exceeds the budget of .* take the plan optimal"),
        ("sqrt", -1, "exceeds the budget"),
        ([F(0), F(1), B(1), B(0)], -1, "exceeds the budget"),
        ("sqrt", "1MB", "budget_bytes is '1MB': give a number of bytes"),
        ("optimal", float("nan"), "budget_bytes is nan"),
    ],
)
def test_budgets_that_cannot_be_kept_are_a_sentence(plan, budget, sentence):
    """-1: a byte less than the plan's peak, which is enough."""
    layers, x = [nn.Linear(6, 6), nn.Tanh()], start((7, 6))
    if budget == -1:
        chain = weigh(layers, x)
        peak = peak_bytes(plan_of(plan, chain), chain)
        checkpoint_sequential(layers, plan, x, budget_bytes=peak).sum().backward()
        budget = peak - 1
    with pytest.raises(Impossible, match=sentence):
        checkpoint_sequential(layers, plan, x, budget_bytes=budget)


# -- weighing, and a part only ---------------------------------------------------------------------


def test_weights_of_layers_by_hand():
    """Linear saves its input; tanh its output; dropout its mask, which is a float tensor in torch's
    own."""
    layers = [
        nn.Linear(6, 4),
        nn.Tanh(),
        nn.Sequential(nn.Linear(4, 8), nn.GELU()),
        lambda x: x + 1,
    ]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    chain = weigh(layers, start((5, 6)))
    assert torch.equal(torch.get_rng_state(), state) and layers[0].weight.grad is None
    assert chain == Chain.of(
        states=(120, 80, 80, 160, 160),
        saved=(0, 0, 160, 0),
        forwards=(120, 0, 160, 0),
        saves_input=(True, False, True, False),
        saves_output=(False, True, False, False),
    )


def test_selective_keeps_all_but_the_square_and_computes_the_same_bits():
    B_, S, H = 2, CONFIG.sequence, CONFIG.heads
    square = B_ * H * S * S
    layers, x = blocks(), start((B_, S, CONFIG.width))
    again = [selective(layer) for layer in layers]
    whole, part = weigh(layers, x), weigh(again, x)
    # the softmax, what dropout makes of it (4 bytes each) and its mask (1); a few scalars go along
    assert all(square * 9 <= a - b <= square * 9 + 64 for a, b in zip(whole.saved, part.saved))
    expected = trained(layers, x, lambda x: run_plain(layers, x)) + [x.grad]
    for forward in (
        lambda x: run_plain(again, x),
        lambda x: checkpoint_sequential(layers, "selective", x),
    ):
        x.grad = None
        assert same(trained(layers, x, forward) + [x.grad], expected)
    assert "core" not in vars(layers[0].block.attention)
