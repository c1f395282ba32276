"""Reversible layers: the gradients of the plain run, in memory that does not grow with depth, and
what the inverse rounds."""

import pytest
import torch
from torch import nn

from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime import Ledger
from bigtrain_lab.techniques.reversible import (
    ReversibleBlock,
    ReversibleSequence,
    rounding_by_depth,
)

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
    for t in x:
        t.grad = None
    return found, torch.cat([drawn, torch.rand(2)])


def agree(sequence, x, **how):
    (found, drawn), (expected, expected_drawn) = (
        trained(f, sequence, x, **how) for f in (lambda s, *x: s(*x), plain)
    )
    assert [name for name in found if found[name] is None] == [
        name for name in expected if expected[name] is None
    ]
    assert not tensors_differ(
        *({name: t for name, t in all_of.items() if t is not None} for all_of in (found, expected))
    )
    assert torch.equal(drawn, expected_drawn)
    assert torch.equal(found["y1"], expected["y1"]) and torch.equal(found["y2"], expected["y2"])


def sharing(one):
    return [ReversibleBlock(one, part()), ReversibleBlock(part(), one), ReversibleBlock(one, one)]


CASES = {  # blocks, whether the streams have gradients, what else
    "plain": lambda: (net(), True, {}),
    "dropout": lambda: (net(dropout=0.3), True, {}),
    "streams without a gradient": lambda: (net(), False, {}),
    "dropout, streams without a gradient": lambda: (net(dropout=0.3), False, {}),
    "one stream alone": lambda: (net(4), True, {"loss": lambda y1, y2: y1.square().sum()}),
    "shared functions": lambda: (ReversibleSequence(sharing(part())), True, {}),
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
    agree(sequence, streams(grad), **options)


def test_in_the_middle_of_a_graph():
    first, sequence, x = (
        nn.Linear(4, 2 * WIDTH).double(),
        net(3),
        torch.randn(ROWS, 4, dtype=torch.float64),
    )

    def outcome(run):
        first.zero_grad()
        sum(y.exp().sum() for y in run(*first(x).chunk(2, -1))).backward()
        return {"weight": first.weight.grad.clone(), "bias": first.bias.grad.clone()}

    assert not tensors_differ(outcome(sequence), outcome(lambda *x: plain(sequence, *x)))


def test_under_autocast():
    sequence, x = net(3, dtype=torch.float32), streams(dtype=torch.float32)

    def outcome(run):
        with torch.autocast("cpu", torch.bfloat16):
            y = run(*x)
        sum(t.sum() for t in y).backward()
        found = dict(enumerate(t.grad.clone() for t in x))
        for t in x:
            t.grad = None
        return found

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
