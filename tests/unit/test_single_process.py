"""Data parallelism in one process: outputs and gradients are those of the module alone."""

import pytest
import torch
from torch import nn

from bigtrain_lab.core import Impossible
from bigtrain_lab.techniques.single_process import SingleProcessDataParallel

from .threads import WIDTH, Model


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_outputs_and_gradients_are_those_of_one_device(rows):
    plain, recorded = Model(spare=True), []
    plain.first.register_forward_hook(lambda *_: recorded.append(torch.is_grad_enabled()))
    model = SingleProcessDataParallel(plain, ["cpu"] * 3)
    x = torch.randn(rows, WIDTH, dtype=torch.float64)
    weights = [p for p in model.parameters() if p.requires_grad]
    expected = plain(x, 2.0)
    gradients = torch.autograd.grad(expected.square().mean(), weights)
    found = model(x, 2.0)
    found.square().mean().backward()
    assert torch.allclose(found, expected, rtol=1e-12, atol=0)
    for weight, gradient in zip(weights, gradients):
        assert (weight.grad - gradient).norm() <= 1e-12 * gradient.norm()
    recorded.clear()
    with torch.no_grad():
        assert not model(x).requires_grad
    assert recorded == [False] * min(3, rows)


def test_a_changed_buffer_stays_on_the_first_device_and_modes_are_passed_on():
    torch.manual_seed(0)
    model = SingleProcessDataParallel(nn.BatchNorm1d(4), ["cpu", "cpu"])
    x = torch.randn(8, 4)
    model(x)
    assert model.module.num_batches_tracked == 1
    assert torch.allclose(model.module.running_mean, 0.1 * x[:4].mean(0), atol=1e-6)
    model.module.eval()
    model.module.eps = 2.0
    assert torch.allclose(model(x), model.module(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert SingleProcessDataParallel(nn.Linear(4, 4), ["cpu"])(x).dtype is torch.bfloat16


class Averaged(nn.Module):
    """Its average is another tensor after each forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x, more, *, pair=None):
        self.average = 0.9 * self.average + 0.1
        return x + more["y"] * self.average + (0 if pair is None else pair[0])


def test_tensors_inside_of_inputs_are_split_and_a_buffer_that_is_replaced_is_kept():
    x, plain = torch.arange(12.0).view(3, 4), Averaged()
    model = SingleProcessDataParallel(Averaged(), ["cpu"] * 2)
    for _ in range(2):
        found, expected = (each(x, {"y": x.cos()}, pair=(x.sin(), 1)) for each in (model, plain))
        assert torch.equal(found, expected)
    assert torch.equal(model.module.average, plain.average)


class Summed(nn.Module):
    def forward(self, x):
        return x.sum(0, keepdim=True)


@pytest.mark.parametrize(
    "module, devices, inputs, said",
    [
        (nn.Linear(4, 4), [], (), "no device"),
        (nn.Linear(4, 4), ["cpu"], (3,), "No input is a tensor"),
        (nn.Bilinear(4, 4, 4), ["cpu"] * 2, (torch.ones(2, 4), torch.ones(3, 4)), "2 and 3 rows"),
        (Summed(), ["cpu"] * 2, (torch.ones(4, 4),), "no tensor of as many rows"),
    ],
)
def test_what_cannot_be_split_is_refused(module, devices, inputs, said):
    with pytest.raises(Impossible, match=said):
        SingleProcessDataParallel(module, devices)(*inputs)
