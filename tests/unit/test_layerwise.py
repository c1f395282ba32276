"""LAMB and LARS against their naive versions, and without a ratio against torch, in float64; rates in
closed form.

Over slices and shards their norms are those of whole parameters by tests/compose (LAMB) and by the
tests of ZeRO (both)."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques.lamb import LAMB, NaiveLAMB
from bigtrain_lab.techniques.lars import LARS, naive_lars
from bigtrain_lab.techniques.learning_rates import (
    constant,
    linear_scaling,
    noam,
    polynomial_decay,
    square_root_scaling,
    warm_up,
)

from .threads import on_threads

LAMB_SETTINGS = {"lr": 0.02, "betas": (0.8, 0.97), "eps": 1e-6, "weight_decay": 0.1}
LARS_SETTINGS = {"lr": 0.5, "momentum": 0.8, "weight_decay": 0.03, "trust_coefficient": 0.02}


def drawn(seed, steps, shapes=((3, 5), (), (0, 4), (1,), (17, 3, 2), (60, 40))):
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


def naive_lamb(weights, clip_norm=np.inf, updates=0, **settings):
    """One that made so many updates; after infinitely many it corrects no bias."""
    made = NaiveLAMB(weights, [True] * len(weights), Alone(), clip_norm=clip_norm, **settings)
    made.t = [updates] * len(weights)
    return made


def stepping_lars(weights, **settings):
    return SimpleNamespace(
        step=partial(naive_lars, weights, [*map(torch.zeros_like, weights)], **settings)
    )


PLAIN = {"weight_decay": 0.0, "trust_ratio": False}  # options of a group
VARIANTS = {  # ours, with the options of its groups; the reference; the settings of both
    "Algorithm 2": (LAMB, {}, naive_lamb, LAMB_SETTINGS),
    "no bias correction": (
        LAMB,
        {"bias_correction": False},
        partial(naive_lamb, updates=np.inf),
        LAMB_SETTINGS,
    ),
    "clipped phi": (LAMB, {}, naive_lamb, LAMB_SETTINGS | {"clip_norm": 2.0}),
    "LARS": (LARS, {}, stepping_lars, LARS_SETTINGS),
    "LARS, eps": (LARS, {}, stepping_lars, LARS_SETTINGS | {"eps": 0.5}),
    "Adam": (LAMB, PLAIN, torch.optim.Adam, {"lr": 0.02, "betas": (0.8, 0.97), "eps": 1e-6}),
    "momentum": (LARS, PLAIN, torch.optim.SGD, {"lr": 0.5, "momentum": 0.8}),
    "Nesterov": (LARS, PLAIN, torch.optim.SGD, {"lr": 0.5, "momentum": 0.8, "nesterov": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_are_those_of_the_reference(variant):
    """A hundred of them, also at another group's rate."""
    kind, options, reference, settings = VARIANTS[variant]
    first, gradients = drawn(len(variant), 100)
    weights, plain, slow = parameters(first), parameters(first), {"lr": 0.003}
    groups = {"params": weights[:4]} | options, {"params": weights[4:]} | slow | options
    both = reference(plain[:4], **settings), reference(plain[4:], **settings | slow)
    step = SimpleNamespace(step=lambda: [each.step() for each in both])
    optimizer, expected = kind(groups, **settings), stepped(step, plain, gradients)
    same(stepped(optimizer, weights, gradients), expected)
    assert set(optimizer.trust_ratios) == set(weights)
    assert np.abs(expected[-1]).max() > 0  # zeros move: their ratio was 1


def test_gradients_are_first_clipped_by_their_global_norm():
    first, gradients = drawn(3, 20)
    norms = [np.sqrt(sum(np.sum(g**2) for g in each)) for each in gradients]
    limit = float(np.median(norms))
    clipped = [[g / max(1, norm / limit) for g in each] for norm, each in zip(norms, gradients)]
    weights, plain = parameters(first), parameters(first)
    found = stepped(LAMB(weights, **LAMB_SETTINGS, max_grad_norm=limit), weights, gradients)
    same(found, stepped(naive_lamb(plain, **LAMB_SETTINGS), plain, clipped))
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
    assert {value.dtype for own in other.state.values() for value in own.values()} == {
        torch.float32
    }


def test_a_parameter_that_the_loss_did_not_reach_counts_its_own_steps():
    first, gradients = drawn(6, 4)
    late = [[None, *each[1:]] for each in gradients[:2]] + gradients[2:]
    weights, plain = parameters(first), parameters(first)
    found = stepped(LAMB(weights, **LAMB_SETTINGS), weights, late)
    same(found, stepped(naive_lamb(plain, **LAMB_SETTINGS), plain, late))


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
    messages, group, (first, gradients) = [], Alone(), drawn(9, 1)
    group.size, weights = 2, parameters(first)
    group.all_reduce = lambda tensor, name: messages.append(tensor.shape)
    stepped(LAMB(weights, group=group), weights, gradients)
    assert messages == [(2, len(first))]


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, option",
    [
        (LAMB, {"lr": -1}),
        (LAMB, {"betas": (0.9, 1.0)}),
        (LAMB, {"eps": -1e-6}),
        (LAMB, {"clip_norm": 0}),
        (LAMB, {"max_grad_norm": -1}),
        (LAMB, {"weight_decay": float("nan")}),
        (LARS, {"momentum": 1}),
        (LARS, {"trust_coefficient": 0}),
    ],
)
def test_options_out_of_range(kind, option):
    with pytest.raises(Impossible, match=next(iter(option)) + " is .*: give "):
        kind([torch.nn.Parameter(torch.ones(1))], **option)
    if "max_grad_norm" not in option:
        with pytest.raises(Impossible, match=" is .*: give "):
            kind([{"params": [torch.nn.Parameter(torch.ones(1))]} | option])


# -- learning rates --------------------------------------------------------------------------------


def test_noam_gives_the_published_rate():
    assert f"{noam(512, 4000, 0.5)(1845):.3e}" == "1.612e-04"
    rates = [noam(512, 4000)(update) for update in range(1, 20_000)]
    assert max(rates) == rates[3999] == pytest.approx((512 * 4000) ** -0.5)
    assert rates[15_999] == pytest.approx(rates[3999] / 2) and rates[1999] == pytest.approx(
        rates[3999] / 2
    )


def test_warm_up_is_linear_and_hands_on():
    rate = warm_up(0.4, 4, polynomial_decay(0.4, 10, power=2))
    assert [rate(update) for update in range(1, 5)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [rate(4 + update) for update in range(1, 13)] == pytest.approx(
        [0.4 * max(0, 1 - t / 10) ** 2 for t in range(1, 13)]
    )
    assert warm_up(0.4, 4)(1000) == constant(0.4)(1) == 0.4


def test_polynomial_decay_ends_where_it_is_told():
    rate = polynomial_decay(1.0, 8, power=0.5, end=0.25)
    assert [rate(t) for t in (2, 6, 8, 9, 100)] == pytest.approx(
        [0.25 + 0.75 * 0.75**0.5, 0.625, 0.25, 0.25, 0.25]
    )


def test_scalings():
    assert linear_scaling(0.1, 8192, 256) == pytest.approx(3.2) and square_root_scaling(
        0.1, 1024, 256
    ) == pytest.approx(0.2)
    noise = torch.randn(64, 100_000, generator=torch.Generator().manual_seed(0))
    variances = [
        float((square_root_scaling(0.1, size, 4) * noise[:size].mean(0)).var()) for size in (4, 64)
    ]
    assert variances[1] == pytest.approx(variances[0], rel=0.02)  # what the rule is said to keep


@pytest.mark.parametrize(
    "make, told",
    [
        *(
            (make, "give a number above 0")
            for make in (
                lambda: noam(0, 4000),
                lambda: warm_up(0.1, 0),
                lambda: polynomial_decay(0.1, math.inf),
                lambda: linear_scaling(0.1, 8, 0),
                lambda: square_root_scaling(-0.1, 8, 8),
                lambda: noam("512", 4),
                lambda: noam(512, 4)(0),
            )
        ),
        (
            lambda: LARS([{"params": [torch.nn.Parameter(torch.ones(2))], "maximize": True}]),
            "maximize is True: give False",
        ),
        (
            lambda: LARS([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))]),
            "complex",
        ),
    ],
)
def test_rates_that_cannot_be_made_and_groups_that_cannot_be_stepped(make, told):
    with pytest.raises(Impossible, match=told):
        make()
