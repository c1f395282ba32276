"""LAMB and LARS against literal transcriptions of their papers, in float64.

Over slices and shards their norms are those of whole parameters by tests/compose (LAMB) and by the
tests of ZeRO (both)."""

import copy

import numpy as np
import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import layerwise
from bigtrain_lab.techniques.lamb import LAMB
from bigtrain_lab.techniques.lars import LARS

from .threads import on_threads

LAMB_SETTINGS = {"lr": 0.02, "betas": (0.8, 0.97), "eps": 1e-6, "weight_decay": 0.1}
LARS_SETTINGS = {"lr": 0.5, "momentum": 0.8, "weight_decay": 0.03, "trust_coefficient": 0.02}
SHAPES = [(3, 5), (), (0, 4), (1,), (17, 3, 2), (60, 40)]


def algorithm_2(
    x,
    gradients,
    lr,
    betas,
    eps,
    weight_decay,
    bias_correction=True,
    clip_norm=np.inf,
    trust_ratio=True,
):
    """LAMB of one layer, line by line, in numpy."""
    m = v = np.zeros_like(x)
    for t, g in enumerate(gradients, 1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        m_hat, v_hat = (
            (m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)) if bias_correction else (m, v)
        )
        u = m_hat / (np.sqrt(v_hat) + eps) + weight_decay * x
        x = x - lr * ratio(min(np.linalg.norm(x), clip_norm), np.linalg.norm(u), trust_ratio) * u
    return x


def lars(
    x,
    gradients,
    lr,
    momentum,
    weight_decay,
    trust_coefficient,
    eps=0.0,
    nesterov=False,
    trust_ratio=True,
):
    """Algorithm 1 of LARS."""
    v = np.zeros_like(x)
    for g in gradients:
        size = np.linalg.norm(g) and np.linalg.norm(g) + weight_decay * np.linalg.norm(x) + eps
        step = (
            lr
            * ratio(trust_coefficient * np.linalg.norm(x), size, trust_ratio)
            * (g + weight_decay * x)
        )
        v = momentum * v + step
        x = x - (step + momentum * v if nesterov else v)
    return x


def ratio(x_norm, u_norm, counts=True):
    return x_norm / u_norm if counts and x_norm > 0 and u_norm > 0 else 1.0


def drawn(seed, steps, shapes=SHAPES):
    """First weights, of which the last are zeros, and the gradients of each step."""
    rng = np.random.default_rng(seed)
    shapes = [*shapes, *(tuple(rng.integers(1, 9, rng.integers(1, 4))) for _ in range(4)), (8,)]
    first = [np.asarray(rng.normal(size=shape)) for shape in shapes]
    first[-1] *= 0
    return first, [
        [np.asarray(rng.normal(size=x.shape) * 10.0 ** rng.uniform(-3, 1)) for x in first]
        for _ in range(steps)
    ]


def parameters(first, dtype=torch.float64):
    return [torch.nn.Parameter(torch.tensor(x, dtype=dtype)) for x in first]


def stepped(optimizer, weights, gradients):
    for each in gradients:
        for weight, g in zip(weights, each):
            weight.grad = None if g is None else torch.as_tensor(g).to(weight)
        optimizer.step()
    return [weight.detach().double().numpy() for weight in weights]


def same(found, expected, near=1e-12):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=near, atol=near * np.abs(y).max(initial=0))


VARIANTS = {  # options of the class -> options of the transcription
    "Algorithm 2": (LAMB, algorithm_2, LAMB_SETTINGS, {}),
    "no bias correction": (LAMB, algorithm_2, LAMB_SETTINGS, {"bias_correction": False}),
    "clipped phi": (LAMB, algorithm_2, LAMB_SETTINGS, {"clip_norm": 2.0}),
    "LARS": (LARS, lars, LARS_SETTINGS, {}),
    "LARS, eps": (LARS, lars, LARS_SETTINGS, {"eps": 0.5}),
    "LARS, Nesterov": (LARS, lars, LARS_SETTINGS, {"nesterov": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_is_that_of_the_paper(variant, monkeypatch):
    """A hundred of them, also where a tensor is cut into blocks, and where a group of parameters
    has no decay and no ratio."""
    monkeypatch.setattr(layerwise, "BLOCK", 100)
    kind, written, settings, option = VARIANTS[variant]
    first, gradients = drawn(len(variant), 100)
    weights, plain = parameters(first), {"weight_decay": 0.0, "trust_ratio": False}
    optimizer = kind(
        [{"params": weights[:-3]}, {"params": weights[-3:-1]} | plain, {"params": weights[-1:]}],
        **settings,
        **option,
    )
    expected = [
        written(
            x,
            each,
            **settings | option | (plain if number in (len(first) - 3, len(first) - 2) else {}),
        )
        for number, (x, each) in enumerate(zip(first, zip(*gradients)))
    ]
    same(stepped(optimizer, weights, gradients), expected)
    assert set(optimizer.trust_ratios) == set(weights) and {
        optimizer.trust_ratios[p] for p in weights[-3:-1]
    } == {1.0}
    assert np.abs(expected[-1]).max() > 0  # zeros move: their ratio was 1


def test_gradients_are_first_clipped_by_their_global_norm():
    first, gradients = drawn(3, 20)
    norms = [np.sqrt(sum(np.sum(g**2) for g in each)) for each in gradients]
    limit = float(np.median(norms))
    clipped = [[g / max(1, norm / limit) for g in each] for norm, each in zip(norms, gradients)]
    weights = parameters(first)
    found = stepped(LAMB(weights, **LAMB_SETTINGS, max_grad_norm=limit), weights, gradients)
    same(found, [algorithm_2(x, each, **LAMB_SETTINGS) for x, each in zip(first, zip(*clipped))])
    assert min(norms) < limit < max(norms)
    same([p.grad for p in weights], gradients[-1])  # they stay as they are


@pytest.mark.parametrize("kind, settings", [(LAMB, LAMB_SETTINGS), (LARS, LARS_SETTINGS)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_state_and_mathematics_of_half_parameters_are_float32(kind, settings, dtype):
    """Rounded once a step, as the parameter is; a transposed one is a parameter too."""
    first, gradients = drawn(4, 5, [(6, 8)])
    halves, wide = parameters(first, dtype), parameters(first)
    halves[0] = torch.nn.Parameter(halves[0].detach().t().contiguous().t())
    optimizer = kind(halves, **settings)
    expected = stepped(kind(wide, **settings), wide, gradients)
    for found, y in zip(stepped(optimizer, halves, gradients), expected):
        off = np.abs(found - y).max(initial=0)
        assert off <= 5 * torch.finfo(dtype).eps * max(1, np.abs(y).max(initial=0))
    assert {p.dtype for p in halves} == {dtype}
    other = kind(parameters(first, dtype), **settings)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    tensors = [value for own in other.state.values() for value in own.values()]
    assert {value.dtype for value in tensors} == {torch.float32}


def test_a_parameter_that_the_loss_did_not_reach_counts_its_own_steps():
    first, gradients = drawn(6, 4)
    late = [[None, *each[1:]] for each in gradients[:2]] + gradients[2:]
    weights = parameters(first)
    found = stepped(LAMB(weights, **LAMB_SETTINGS), weights, late)
    same(
        found[:2],
        [
            algorithm_2(first[0], [each[0] for each in gradients[2:]], **LAMB_SETTINGS),
            algorithm_2(first[1], [each[1] for each in gradients], **LAMB_SETTINGS),
        ],
    )


# -- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_a_rank_without_gradients_does_not_hold_up_the_others(max_grad_norm):
    """Its zeros are part of the norms; the weight of the rank that has the only piece moves as it
    would alone."""

    def moved(group, learns=True):
        weights = parameters([np.arange(1.0, 4)] * 2)
        options = {"group": group, "pieces": lambda p: True, "max_grad_norm": max_grad_norm}
        gradients = [np.ones(3) if learns else None] * 2
        return stepped(LAMB(weights, 0.1, **options), weights, [gradients])

    idle, moves = on_threads(lambda group: moved(group, group.rank == 1), 2)
    assert np.array_equal(idle, [[1, 2, 3]] * 2) and np.array_equal(moves, moved(None))
    assert np.array_equal(moved(None, learns=False), [[1, 2, 3]] * 2)


def test_one_message_a_step_carries_two_numbers_a_parameter():
    """`pieces` says what adds up: all, as in ZeRO, whose shards are pieces of everything. Of a
    duplicate rank 1 adds nothing."""

    class Told(Alone):
        def all_reduce(self, tensor, op="sum", name=""):
            self.messages.append(tensor.clone())
            return tensor.add_(1)

    first, gradients = drawn(9, 1, [(4,)])
    for pieces in (True, False):
        group = Told()
        group.messages, group.rank, group.size, weights = [], 1, 2, parameters(first)
        stepped(LAMB(weights, group=group, pieces=lambda p: pieces), weights, gradients)
        (message,) = group.messages
        assert message.shape == (2, len(first))
        same([message[0].sqrt().numpy()], [[pieces * np.linalg.norm(x) for x in first]])


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, option",
    [
        (LAMB, {"lr": -1}),
        (LAMB, {"betas": (0.9, 1.0)}),
        (LAMB, {"betas": 0.9}),
        (LAMB, {"eps": -1e-6}),
        (LAMB, {"clip_norm": 0}),
        (LAMB, {"max_grad_norm": -1}),
        (LAMB, {"weight_decay": float("nan")}),
        (LARS, {"momentum": 1}),
        (LARS, {"trust_coefficient": 0}),
        (LARS, {"lr": None}),
        (LAMB, {"lr": torch.ones(2)}),
    ],
)
def test_options_out_of_range(kind, option):
    with pytest.raises(Impossible, match=next(iter(option)) + ".* must be"):
        kind([torch.nn.Parameter(torch.ones(1))], **option)
    if "max_grad_norm" not in option:
        with pytest.raises(Impossible, match="must be"):
            kind([{"params": [torch.nn.Parameter(torch.ones(1))]} | option])


def test_sparse_gradients_and_complex_parameters():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(Impossible, match="sparse=False"):
        LAMB(table.parameters()).step()
    with pytest.raises(Impossible, match="complex"):
        LARS([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])
