"""A stage as a function of a weight version: what torch.func.functional_call promises. Gradients over
versions are proved by the pipelines of tests/parity, hooks by tests/compose."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from bigtrain_lab.techniques.weight_versions import WeightVersions


class Stage(nn.Module):
    """Tied weights (one parameter at two places), a batch norm's buffers, and a failure on
    demand."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.down.weight = self.up.weight

    def forward(self, x, fail=False):
        x = self.norm(self.up(x))
        if fail:
            raise ValueError("on demand")
        return self.down(x)


def stage_and_versions():
    stage = Stage().double()
    return stage, WeightVersions(stage), torch.randn(5, 4, dtype=torch.float64)


def test_a_call_is_functional_call_with_tied_weights_and_buffers():
    stage, versions, x = stage_and_versions()
    twin = Stage().double()
    other = {name: (2 * p).detach().requires_grad_() for name, p in stage.named_parameters()}
    with versions.placed(other):
        found = stage(x)
    expected = functional_call(twin, other, (x,))
    assert torch.equal(stage.norm.running_mean, twin.norm.running_mean)
    assert torch.equal(found, expected) and not torch.equal(found, stage(x))
    assert torch.autograd.grad(found.sum(), other["up.weight"])[0].abs().max() > 0


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_call_the_module_has_its_own_parameters_again(fails):
    stage, versions, x = stage_and_versions()
    before = dict(stage.named_parameters(remove_duplicate=False))
    try:
        with versions.placed(versions[0]):
            stage(x, fails)
    except ValueError:
        assert fails
    after = dict(stage.named_parameters(remove_duplicate=False))
    assert (
        all(after[name] is parameter for name, parameter in before.items())
        and len(after) == len(before) == 6
    )
    assert stage.down.weight is stage.up.weight
