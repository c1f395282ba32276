"""What the pairs do not show: other modules inside stages, ranks that must agree, and what is
refused when parts are put together."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import parametrizations

from bigtrain_lab import Action, Group, Impossible, Schedule, launch
from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.order.schedule import U
from bigtrain_lab.techniques import LAMB, MixedPrecision, Pipeline, ReversibleBlock
from bigtrain_lab.techniques.checkpoint import checkpoint
from bigtrain_lab.techniques.clip import clip_grad_norm
from bigtrain_lab.techniques.guards import pipeline as guard, refuse_loss
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler
from bigtrain_lab.techniques.split_backward import WeightGradientsLater


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = ReversibleBlock(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4))

    def forward(self, x):
        return torch.cat(self.block(*x.chunk(2, -1)), -1)


class Shared(nn.Module):
    """One Linear at two places of a stage, once checkpointed."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.linear(checkpoint(lambda x: self.linear(self.norm(x)).tanh(), x))


MODULES = {
    "reversible": Reversible,
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True),
    "shared": Shared,
    "batch norm": lambda: nn.Sequential(
        nn.Flatten(0, 1), nn.BatchNorm1d(8), nn.Unflatten(0, (-1, 6))
    ),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(8, 8)),
    "frozen bias": lambda: nn.Linear(8, 8).apply(lambda one: one.bias.requires_grad_(False)),
}


def stages(make) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 8), make()).double() for _ in range(2)]


def hooked(module, fired: Counter, stage: int) -> None:
    for name, weight in module.named_parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(
                lambda _, name=name: fired.update([f"{stage} {name}"])
            )


X = torch.linspace(-1, 1, 8 * 6 * 8, dtype=torch.float64).reshape(8, 6, 8).sin()


def results(pair, fired) -> dict:
    found = {
        f"{stage} {name}": p.grad.numpy()
        for stage, module in pair
        for name, p in module.named_parameters()
        if p.grad is not None
    }
    found |= {
        f"{stage} {name}": b.double().numpy()
        for stage, module in pair
        for name, b in module.named_buffers()
    }
    return found | {f"calls for {name}": np.array(float(calls)) for name, calls in fired.items()}


def every_module(rank) -> dict:
    found = {}
    for what, make in MODULES.items():
        for schedule in ("1f1b", "zb-h1"):
            module, fired = stages(make)[rank.index], Counter()
            hooked(module, fired, rank.index)
            Pipeline(module, Schedule.named(schedule)(2, 4), mse_loss, Group()).step(X, X.cos())
            found |= {
                f"{schedule}, {what}: {name}": array
                for name, array in results([(rank.index, module)], fired).items()
            }
    return found


def test_modules_of_other_kinds_train_inside_a_stage_as_in_one_process(tmp_path):
    result, expected = launch(every_module, 2, directory=tmp_path / "run").result, {}
    for what, make in MODULES.items():
        pair, fired = stages(make), Counter()
        for stage, module in enumerate(pair):
            hooked(module, fired, stage)
        for x in X.chunk(4):
            (mse_loss(pair[1](pair[0](x)), x.cos()) / 4).backward()
        expected |= {
            f"{schedule}, {what}: {name}": array
            for schedule in ("1f1b", "zb-h1")
            for name, array in results(list(enumerate(pair)), fired).items()
        }
    assert result.keys() == expected.keys()
    assert {
        name: off for name, off in relative_errors(result, expected).items() if not off <= 1e-12
    } == {}


# -- ranks that must agree -------------------------------------------------------------------------


def refused(call, *args, **kwargs) -> str:
    try:
        call(*args, **kwargs)
    except Impossible as sentence:
        return str(sentence)
    return ""


def agreeing(rank) -> dict:
    """Only rank 1 overflows; then only rank 1 has a gradient."""
    group, weight = Group(), nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], 1.0), DynamicLossScaler(8.0, group=group)
    scaler.scale((weight * (torch.inf if rank.index else 1.0)).sum()).backward()
    scaler.step(optimizer)
    assert "have agreed" in refused(scaler.unscale_, sgd([nn.Parameter(torch.ones(1))]))
    scaler.update()
    found = [scaler.get_scale(), float((weight - 1).abs().sum())]
    weight.grad = torch.full((2,), 3.0) if rank.index else None
    found.append(clip_grad_norm(weight, 1.0, group))
    return {f"rank {rank.index}": np.array(found)}


def test_all_ranks_skip_where_one_must_and_clip_by_one_norm(tmp_path):
    result = launch(agreeing, 2, directory=tmp_path / "run").result
    for rank in range(2):
        assert result[f"rank {rank}"].tolist() == pytest.approx([4, 0, 18**0.5])


class Table(nn.Module):
    """A stage with one matrix, used or not."""

    def __init__(self, values: torch.Tensor, used: bool = True):
        super().__init__()
        self.table, self.other, self.used = nn.Parameter(values), nn.Linear(4, 4).double(), used

    def forward(self, x):
        return self.other(x @ self.table if self.used else x)


def tied(rank) -> dict:
    """What each way of parting is refused with."""
    start, x = torch.eye(4, dtype=torch.float64).t(), torch.ones(8, 4, dtype=torch.float64)
    tie, found = {"table": {0: "table", 1: "table"}}, {}

    def made(module, **more):
        return Pipeline(module, Schedule.named("gpipe")(2, 2), mse_loss, Group(), tied=tie, **more)

    part = made(
        Table(start.clone()), optimizer=lambda p: torch.optim.SGD(p, 0.1 * (1 + rank.index))
    )
    part.step(x, x)
    again = made(Table(start.clone()))
    again.step(x, x)
    table = again.modules[rank.index].table
    assert table.grad.stride() == table.stride() == (1, 4)  # as fused optimizers read both
    for what, pipeline in {
        "differ": made(Table(start + rank.index)),
        "one is frozen": made(Table(start.clone()).requires_grad_(rank.index == 0)),
        "unused": made(Table(start.clone(), used=False)),
        "other rates": part,
        "not cleared": again,
    }.items():
        found[f"{what} on rank {rank.index}"] = np.array(refused(pipeline.step, x, x))
        pipeline.group.finish()  # what it sent is still wanted
    return found


def test_copies_of_a_tied_weight_may_not_part(tmp_path):
    told = {
        **dict.fromkeys(("differ", "one is frozen", "other rates"), "differ"),
        "unused": "got no gradient",
        "not cleared": "gradient of an earlier batch",
    }
    result = launch(tied, 2, directory=tmp_path / "run").result
    assert len(result) == 10
    assert all(told[name.partition(" on ")[0]] in str(each) for name, each in result.items())


# -- refused when put together ---------------------------------------------------------------------


def scaled(level="fp16", prepared=None, **options):
    mp = MixedPrecision(level, **options)
    return mp, mp.prepare(prepared or nn.Linear(2, 2))


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


SHARED, ONE, SCALED = nn.Linear(2, 2), Schedule.named("1f1b")(1, 1), scaled("bf16")[1]
TIE = {"table": {0: "weight", 1: "weight"}}
REFUSALS = {
    "no module": ({"modules": {0: torch.tanh}}, "Stage 0 is a builtin_function"),
    "a stage on two ranks": (
        {
            "schedule": SimpleNamespace(
                name="both ways",
                asynchronous=False,
                stages=2,
                micro_batches=2,
                rank_of=lambda stage, micro_batch: (stage + micro_batch) % 2,
            )
        },
        r"stage 0 on ranks \[0, 1\]",
    ),
    "no optimizer": (
        {"schedule": Schedule.named("pipedream")(2, 2), "optimizer": None},
        "pass optimizer=",
    ),
    "shared by two stages": (
        {"modules": {0: SHARED, 2: SHARED}, "optimizer": sgd},
        "in stages 0 and 2, which would update it twice",
    ),
    "late weights, masters": (
        {
            "schedule": Schedule.named("pipedream")(2, 2),
            "optimizer": sgd,
            "modules": {0: scaled("bf16")[1]},
        },
        "no master weight may change",
    ),
    "late weights, scale": (
        {
            "schedule": Schedule.named("pipedream")(2, 2),
            "optimizer": sgd,
            "scale": lambda loss: 8 * loss,
        },
        "no loss scale",
    ),
    "late weights, tied": (
        {"schedule": Schedule.named("pipedream")(2, 2), "optimizer": sgd, "tied": TIE},
        "copies of a tied weight would part",
    ),
    "late weights, written in a forward": (
        {
            "schedule": Schedule.named("pipedream")(2, 2),
            "optimizer": sgd,
            "modules": {0: nn.Embedding(2, 2, max_norm=1.0)},
        },
        "embedding with a max_norm, which writes",
    ),
    "two precisions": (
        {"modules": {0: scaled("bf16")[1], 2: scaled("bf16")[1]}},
        "prepared by several",
    ),
    "scaled gradients": (
        {"optimizer": sgd, "scale": lambda loss: 8 * loss},
        "step on scaled gradients",
    ),
    "scale forgotten": ({"modules": {0: scaled()[1]}}, "pass scale=mp.scale"),
    "no agreement": ({"scale": scaled()[0].scale}, "skip steps each for itself"),
    "no agreement, torch's": (
        {"scale": torch.amp.GradScaler("cpu").scale},
        "skip steps each for itself",
    ),
    "tied, no such stage": ({"tied": {"table": {5: "weight"}}}, "names stage 5"),
    "tied, no such weight": (
        {"tied": {"table": {0: "bias.weight", 1: "weight"}}},
        "no such parameter",
    ),
    "tied, one parameter": (
        {"tied": {"table": {0: "weight", 2: "weight"}}, "modules": {0: SHARED, 2: SHARED}},
        "name one of them",
    ),
    "tied, update too early": (
        {"tied": TIE, "order": [(Action("B", 0, 0),), U(0, 1), (Action("B", 0, 1),)]},
        "before the last backward",
    ),
}


@pytest.mark.parametrize("given, sentence", REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_compose_is_refused_when_it_is_put_together(given, sentence):
    chosen = {
        "schedule": Schedule.named("interleaved")(2, 2),
        "order": [],
        "modules": {0: nn.Linear(2, 2)},
        "optimizer": None,
        "scale": None,
        "tied": {},
    } | given
    with pytest.raises(Impossible, match=sentence):
        guard.refuse(SimpleNamespace(rank=0, size=2), **chosen)


CLIPS = LAMB(SHARED.parameters(), max_grad_norm=1.0)


def held(optimizer, module=SHARED, loss_fn=None):
    guard.refuse_optimizers({0: optimizer}, {0: module}, ONE, loss_fn)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: held(sgd(SCALED.parameters()), SCALED), "would hold half weights"),
        (lambda: held(torch.optim.LBFGS(SHARED.parameters())), "LBFGS"),
        (lambda: held(CLIPS, loss_fn=nn.Bilinear(2, 2, 1)), "loss_fn has parameters, which"),
        *(
            (lambda y=y: guard.refuse_output(Action("F", 1, 0), y, SHARED, {}), told)
            for y, told in (((1, 2), "returned a tuple"), (torch.ones(2), "has no graph"))
        ),
        *(
            (lambda loss=loss: refuse_loss("loss_fn", loss, "0"), told)
            for loss, told in (
                (1.0, "a float"),
                (torch.ones(2), r"shape \(2,\)"),
                (torch.ones(()), "without a graph"),
            )
        ),
        (lambda: torch.no_grad()(guard.refuse_step)({}, {}), "gradients are off"),
    ],
)
def test_what_would_learn_nothing_is_refused(call, sentence):
    held(CLIPS, loss_fn=SHARED)
    guard.refuse_output(Action("F", 0, 0), torch.ones(2), nn.Linear(2, 2).requires_grad_(False), {})
    with pytest.raises(Impossible, match=sentence):
        call()


def test_a_weight_that_is_used_beside_its_linear_too_is_refused_where_the_backward_is_split():
    linear, later = nn.Linear(2, 2), WeightGradientsLater()
    for use, both in (
        (lambda x: linear(linear(x)), False),
        (lambda x: linear(x) @ linear.weight, True),
        (lambda x: linear(x @ linear.weight), True),
    ):
        with later:
            y = use(torch.ones(1, 2))
        told = refused(guard.refuse_used_twice, 0, y, later.postponed)
        assert ("halves of its gradient" in told) == both
        later.run()


def test_a_split_backward_of_complex_weights_is_the_whole_one():
    linear = nn.Linear(3, 2, dtype=torch.complex128)
    x = torch.randn(4, 3, dtype=torch.complex128, requires_grad=True)
    later = WeightGradientsLater()
    expected = torch.autograd.grad(linear(x).abs().sum(), [x, linear.weight, linear.bias])
    with pytest.raises(RuntimeError, match="does not require grad"):
        later.backward(x.detach(), None)
    assert not later.is_i
    with later:
        y = linear(x)
    later.backward(y.abs().sum(), None)
    later.run()
    for found, whole in zip((x, linear.weight, linear.bias), expected):
        torch.testing.assert_close(found.grad, whole)
