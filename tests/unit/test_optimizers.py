"""Optimizers of the menus: what they keep is found, and a stranger's trains as predicted."""

import pytest
import torch

from bigtrain_lab import Experiment, Impossible, Optimizer
from bigtrain_lab.checks import bytes_differ, clocks_differ, tensors_differ
from bigtrain_lab.experiments.combined import Combined
from bigtrain_lab.experiments.memory import MemoryExperiment
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.experiments.tensor_slicing import TensorSlicing
from bigtrain_lab.experiments.zero import Zero


class Signed(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, arXiv:2302.06675), as one finds it outside of torch."""

    def __init__(self, params, lr, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                kept = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.sub_(kept.lerp(p.grad, 1 - group["betas"][0]).sign(), alpha=group["lr"])
                kept.lerp_(p.grad, 1 - group["betas"][1])


def type_in(called, name, make):
    """A class that a student types in a notebook."""
    own = {"name": name, "make": staticmethod(make)}
    return type(called, (Optimizer,), own | {"__module__": "__main__", "__qualname__": called})


@pytest.fixture
def typed(family):
    """Two that a student typed in a notebook; they leave the menus with the test."""
    type_in("Lion", "typed-lion", lambda weights, rate: Signed(weights, rate))
    type_in("Adafactor", "typed-adafactor", lambda w, rate: torch.optim.Adafactor(w, rate))


def test_what_an_optimizer_keeps_and_how_it_steps_is_found(typed):
    found = {name: (o.moments(), o.element_wise()) for name, o in Optimizer.all().items()}
    assert found == found | {
        "sgd": (0, True),
        "momentum": (1, True),
        "adam": (2, True),
        "adamw": (2, True),
        "adam-fused": (2, True),
        "lars": (1, False),
        "lamb": (2, False),
        "typed-lion": (1, True),
        "typed-adafactor": (2 / 8, False),
    }


def test_a_typed_optimizer_is_in_the_menus_of_all_labs(typed):
    menus = [
        lab.knobs()["optimizer"] for lab in Experiment.all().values() if "optimizer" in lab.knobs()
    ]
    assert len(menus) >= 10 and all("typed-lion" in menu.menu() for menu in menus)


@pytest.mark.parametrize("stage", [1, 3])
def test_the_lab_zero_trains_by_a_stranger_s_optimizer(stage, typed):
    lab = Zero(optimizer="typed-lion", stage=stage, replicas=2, layers=1, width=16, dtype="float64")
    assert lab.bytes_a_weight == (8, 8, 8)
    assert Zero(optimizer="typed-lion", precision="bf16").bytes_a_weight == (2, 2, 8)
    predicted, run = lab.predict(), lab.run()
    trace = run.wait()
    assert clocks_differ(predicted, trace) == bytes_differ(predicted, trace) == []
    assert tensors_differ(run.result, lab.reference()) == []


@pytest.mark.parametrize(
    "settings",
    [(Zero, {"stage": 1}), (TensorSlicing, {}), (Combined, {})],
    ids=lambda each: each[0].name,
)
def test_one_that_looks_across_a_tensor_is_refused_where_ranks_have_parts(settings, typed):
    lab, chosen = settings
    with pytest.raises(Impossible, match="typed-adafactor looks across"):
        lab(optimizer="typed-adafactor", **chosen)


def test_one_that_cannot_step_is_told_in_a_sentence(typed):
    type_in("Closing", "closing", lambda weights, rate: torch.optim.LBFGS(weights, rate))
    for lab in (Zero, PipelineExperiment):
        with pytest.raises(Impossible, match="closing cannot step .*closure"):
            lab(optimizer="closing")
    assert "momentum" in MemoryExperiment(optimizer="adam").relief
