"""A coarse ledger: bytes by kind at boundaries, of what is declared and what autograd saves, released
when its graph is."""

import pytest
import torch

from bigtrain_lab.runtime import Ledger


def holding(ledger=None, **kinds):
    ledger = ledger or Ledger(coarse=True)
    ledger.holdings = lambda: kinds
    return ledger


def test_kinds_count_storages_once_and_only_changes_are_told():
    w = torch.zeros(100)
    ledger = holding(
        weights=[w, w.view(10, 10), w[3:5]], optimizer=[torch.zeros(7), None], stashed=[w]
    )
    assert ledger.changes() == [("weights", 400), ("optimizer", 28)]
    assert ledger.changes() == []
    holding(ledger, weights=[w], gradients=[torch.zeros(100)])
    assert ledger.changes() == [("gradients", 400), ("optimizer", 0)]


def test_activations_are_what_autograd_packed_less_weights_and_inputs():
    x, w = torch.zeros(8, 16), torch.zeros(16, 32, requires_grad=True)
    with holding(weights=[w], inputs=[x]) as ledger:
        y = (x @ w).relu()  # relu saves its output
    assert ledger.now("activations") == 8 * 32 * 4
    total = y.sum()
    kept = y.detach()
    del y
    assert ledger.now("activations") == 8 * 32 * 4  # the graph holds it
    total.backward()
    assert ledger.now("activations") == ledger.now("temporaries") == 0
    assert ledger.bytes == 16 * 32 * 4 and kept.shape == (8, 32)


def test_an_address_that_is_used_again_counts_anew():
    ledger = Ledger(coarse=True)
    for size in (1000, 10, 500):
        x = torch.zeros(size, requires_grad=True)
        with holding(ledger, inputs=[x]):
            y = x.exp()
        assert ledger.now("activations") == 4 * size
        del y
        assert ledger.now("activations") == 0


def test_inplace_on_a_saved_tensor_is_still_refused():
    x = torch.zeros(4, requires_grad=True)
    with holding(inputs=[x]):
        y = x.exp()
        z = y.sum()
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        z.backward()
