"""LAMB and LARS where there is little to step, or nothing that can be stepped."""

import copy
import pickle

import pytest
import torch
from torch import nn

from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime import launch
from bigtrain_lab.techniques.lamb import LAMB
from bigtrain_lab.techniques.lars import LARS


@pytest.mark.parametrize(
    "optimizer", [LAMB, LARS, lambda weights: LAMB(weights, max_grad_norm=1.0)]
)
def test_a_sparse_gradient_is_one_sentence(optimizer):
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(Impossible, match="sparse"):
        optimizer(table.parameters()).step()


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_where_nothing_has_a_gradient_nothing_moves(max_grad_norm):
    weight = nn.Parameter(torch.ones(3))
    LAMB([weight], max_grad_norm=max_grad_norm).step()
    assert weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_a_rank_without_gradients_does_not_hold_up_the_others(max_grad_norm, tmp_path):
    """Its zeros are part of the norms; the weight of the rank that has the only piece moves as it
    would alone."""

    def step(group, gradients):
        weights = [nn.Parameter(torch.arange(1.0, 4)) for _ in range(2)]
        optimizer = LAMB(
            weights, 0.1, group=group, pieces=lambda p: True, max_grad_norm=max_grad_norm
        )
        for weight, gradient in zip(weights, gradients):
            weight.grad = gradient
        optimizer.step()
        return {f"weight {n}": weight.detach().numpy() for n, weight in enumerate(weights)}

    def program(rank):
        return step(rank.group(), [torch.ones(3), torch.ones(3)] if rank.index else [None, None])

    run = launch(
        lambda rank: {
            f"{name} of rank {rank.index}": value for name, value in program(rank).items()
        },
        2,
        directory=tmp_path,
    )
    run.wait()
    alone = step(None, [torch.ones(3), torch.ones(3)])
    for name, expected in alone.items():
        assert run.result[f"{name} of rank 0"].tolist() == [1, 2, 3]
        assert run.result[f"{name} of rank 1"].tolist() == expected.tolist()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_steps_as_the_original(copied):
    def stepped(optimizer):
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = torch.full((3,), 2.0)
        optimizer.step()
        return weight.tolist(), [*optimizer.trust_ratios.values()]

    first = LAMB([nn.Parameter(torch.arange(1.0, 4))], 0.1, max_grad_norm=0.5)
    stepped(first)
    second = copied(first)
    assert second.trust_ratios == {}
    assert stepped(second) == stepped(first)


def test_a_rate_of_several_numbers_is_one_sentence():
    with pytest.raises(Impossible, match="lr is"):
        LAMB([nn.Parameter(torch.ones(3))], torch.ones(2))
