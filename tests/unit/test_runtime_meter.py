"""The meter: bytes by kind at boundaries, distinct storages, released when their graph is."""

import pytest
import torch

from bigtrain_lab.runtime.memory.meter import Meter


def activations(meter) -> int:
    """Now, by all changes that it has told."""
    meter.told = getattr(meter, "told", {}) | dict(meter.changes())
    return meter.told.get("activations", 0)


def holding(meter, **kinds):
    meter.holdings = lambda: kinds
    return meter


def test_kinds_count_storages_once_and_only_changes_are_told():
    w = torch.zeros(100)
    meter = holding(
        Meter(), weights=[w, w.view(10, 10), w[3:5]], optimizer=[torch.zeros(7), None], stashed=[w]
    )
    assert meter.changes() == [("weights", 400), ("optimizer", 28)]
    assert meter.changes() == []
    holding(meter, weights=[w], gradients=[torch.zeros(100)])
    assert meter.changes() == [("gradients", 400), ("optimizer", 0)]


def test_activations_are_what_autograd_packed_less_weights_and_inputs():
    x, w = torch.zeros(8, 16), torch.zeros(16, 32, requires_grad=True)
    meter = holding(Meter(), weights=[w], inputs=[x])
    with meter.begin():
        y = (x @ w).relu()  # relu saves its output
    assert activations(meter) == 8 * 32 * 4
    total = y.sum()
    del y
    assert activations(meter) == 8 * 32 * 4  # the graph holds it
    total.backward()
    assert activations(meter) == 0


def test_an_address_that_is_used_again_counts_anew():
    meter = Meter()
    for size in (1000, 10, 500):
        x = torch.zeros(size, requires_grad=True)
        meter.holdings = lambda x=x: {"inputs": [x]}
        with meter.begin():
            y = x.exp()
        assert activations(meter) == 4 * size
        del y
        assert activations(meter) == 0


def test_inplace_on_a_saved_tensor_is_still_refused():
    x = torch.zeros(4, requires_grad=True)
    meter = holding(Meter(), inputs=[x])
    with meter.begin():
        y = x.exp()
        z = y.sum()
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        z.backward()
