"""A coarse ledger: bytes by kind at boundaries, of what is declared. That it tells what autograd saves,
and lets it go, as another does: test_ledger.py and test_ledger_runs.py."""

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


def test_inplace_on_a_saved_tensor_is_still_refused():
    x = torch.zeros(4, requires_grad=True)
    with holding(inputs=[x]):
        y = x.exp()
        z = y.sum()
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        z.backward()
