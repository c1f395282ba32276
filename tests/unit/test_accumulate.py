"""k micro-batches make the large batch's update: to 1e-12, for each k."""

import math
from itertools import count, zip_longest

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.core import Impossible
from bigtrain_lab.models import GPT, GPTConfig
from bigtrain_lab.techniques.accumulate import (
    RULES,
    accumulate,
    batch_norm_momentum,
    mean_of_means,
    noise_error,
    token_counts,
    token_weighted,
    update,
    windows,
)
from bigtrain_lab.techniques.guards.accumulate import counted
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler, MixedPrecision
from bigtrain_lab.techniques.one_process import Sample, synchronous

LENGTHS = (16, 32, 64, 256)


def padded(number: int):
    """A micro-batch of 2 sentences of 1 to 12 tokens, padded with torch's ignore_index."""
    draw = torch.Generator().manual_seed(number)
    lengths = torch.randint(1, 13, (2,), generator=draw)
    ids, targets = torch.randint(11, (2, 2, 12), generator=draw)
    return ids, targets.masked_fill(torch.arange(12) >= lengths[:, None], -100)


def loss_sum_of(model):
    return lambda batch: cross_entropy(
        model(batch[0]).flatten(0, -2), batch[1].flatten(), reduction="sum"
    )


def tokens(batch):
    return (batch[1] != -100).sum()


class Training:
    """A model, its optimizer, and the gradient of each update."""

    def __init__(self, model=None, make=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)):
        self.model = model or GPT(
            GPTConfig(layers=1, width=8, heads=2, sequence=12, vocabulary=11, dtype=torch.float64),
            seed=1,
        )
        self.optimizer = make(self.model.parameters())
        self.gradients = []
        self.optimizer.register_step_pre_hook(
            lambda *_: self.gradients.append(
                {
                    name: p.grad.clone()
                    for name, p in self.model.named_parameters()
                    if p.grad is not None
                }
            )
        )

    def accumulated(self, micro_batches, k, **options):
        self.losses = accumulate(
            micro_batches, k, loss_sum_of(self.model), tokens, self.optimizer, **options
        )
        return self

    def at_once(self, micro_batches, k, clip=None):
        batches = [
            map(torch.cat, zip(*micro_batches[start : start + k]))
            for start in range(0, len(micro_batches), k)
        ]
        self.losses = synchronous(
            [self.model],
            [[Sample(*batch)] for batch in batches],
            lambda logits, targets: cross_entropy(logits.flatten(0, -2), targets.flatten()),
            lambda _: self.optimizer,
            clip=clip,
        ).losses
        return self

    def differs_from(self, other):
        weights = (
            {name: p.detach() for name, p in each.model.named_parameters()}
            for each in (self, other)
        )
        return [
            found
            for pair in (
                *zip_longest(self.gradients, other.gradients, fillvalue={}),
                tuple(weights),
            )
            for found in tensors_differ(*pair)
        ]


TEN = [padded(number) for number in range(10)]


@pytest.mark.parametrize("scaled", [False, True], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("clip", [None, 0.25])
@pytest.mark.parametrize("k", range(1, 8))
def test_equals_the_large_batch(k, clip, scaled):
    found, expected = (
        Training().accumulated(
            TEN,
            k,
            clip=clip,
            scaler=torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None,
        ),
        Training().at_once(TEN, k, clip=clip),
    )
    assert len(found.losses) == math.ceil(10 / k)
    assert found.differs_from(expected) == []
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)


@pytest.mark.parametrize(
    "scaler", [DynamicLossScaler, lambda: torch.amp.GradScaler("cpu")], ids=["ours", "torch"]
)
def test_one_infinite_micro_batch_skips_its_whole_window(scaler):
    layer, scaler = nn.Linear(1, 1, bias=False), scaler()
    inputs = [torch.ones(1, 1), torch.full((1, 1), math.inf), torch.ones(1, 1), torch.ones(1, 1)]
    before, scale = layer.weight.item(), scaler.get_scale()
    accumulate(
        inputs[:2],
        2,
        lambda x: layer(x).sum(),
        len,
        torch.optim.SGD(layer.parameters(), 0.5),
        clip=1.0,
        scaler=scaler,
    )
    assert layer.weight.item() == before and scaler.get_scale() == scale / 2
    accumulate(
        inputs[2:],
        2,
        lambda x: layer(x).sum(),
        len,
        torch.optim.SGD(layer.parameters(), 0.5),
        clip=2.0,  # above the norm, and below that of scaled gradients
        scaler=scaler,
    )
    assert layer.weight.item() == before - 0.5


def test_a_mixed_precision_stands_in_for_the_scaler():
    """Two updates, each a gradient of 1 at a rate of 0.5, reach the half weights too."""
    mp = MixedPrecision("fp16")
    model = mp.prepare(nn.Linear(1, 1, bias=False))
    nn.init.constant_(model.weight, 0), nn.init.constant_(mp.parameters()[0], 0)
    with mp:
        accumulate(
            [torch.ones(1, 1)] * 4,
            2,
            lambda x: model(x).float().sum(),
            len,
            torch.optim.SGD(mp.parameters(), 0.5),
            scaler=mp,
        )
    assert (
        model.weight.dtype == torch.float16
        and model.weight.item() == mp.parameters()[0].item() == -1
    )


# -- the rules -------------------------------------------------------------------------------------


def test_what_a_token_counts():
    """The closed forms of the lesson: 368/(4 x 16) = 5.75 and 368/(4 x 256) = 0.36, a ratio of
    16."""
    assert token_counts(mean_of_means, LENGTHS) == [5.75, 2.875, 1.4375, 0.359375]
    assert token_counts(token_weighted, LENGTHS) == [1, 1, 1, 1]
    assert token_counts(mean_of_means, [48] * 4) == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "rule,gradient",
    [("token-weighted", [n / 368 for n in LENGTHS]), ("mean of means", [1 / 4] * 4)],
)
def test_the_rule_is_what_reaches_the_optimizer(rule, gradient):
    """A linear loss, one weight a micro-batch: its gradient is the micro-batch's whole weight."""
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    accumulate(
        range(4),
        4,
        lambda i: weight[i] * LENGTHS[i],
        lambda i: LENGTHS[i],
        torch.optim.SGD([weight], 1.0),
        rule=RULES[rule],
    )
    assert (-weight).tolist() == pytest.approx(gradient, rel=1e-14)


@pytest.mark.parametrize(
    "lengths,error", [(LENGTHS, 1.2671), ((192, 200, 216, 224), 0.0610), ((7, 7, 7), 0.0)]
)
def test_the_naive_rule_s_error_on_independent_tokens(lengths, error):
    """Tokens whose gradients are drawn independently err by it."""
    assert noise_error(mean_of_means, lengths) == pytest.approx(error, abs=5e-5)
    assert noise_error(token_weighted, lengths) == 0
    draw = torch.Generator().manual_seed(0)
    sums = [torch.randn(100_000, generator=draw) * math.sqrt(n) for n in lengths]
    right, naive = (
        sum(f * g for f, g in zip(rule(lengths), sums)) for rule in (token_weighted, mean_of_means)
    )
    assert float((naive - right).norm() / right.norm()) == pytest.approx(error, rel=0.03)


# -- windows, memory, parameters without a gradient ------------------------------------------------


def test_windows_are_taken_from_a_stream_and_the_last_is_short():
    assert [len(window) for window in windows(range(10), 4)] == [4, 4, 2]
    assert next(windows(count(), 3)) == (0, 1, 2)  # an endless stream


def test_a_parameter_without_a_gradient_is_passed_by():
    """One that no micro-batch uses; and one that a single micro-batch uses, under weight decay and
    momentum."""
    used = {
        name: nn.Parameter(torch.ones(2, dtype=torch.float64))
        for name in ("always", "once", "never")
    }
    optimizer = torch.optim.SGD(used.values(), 0.1, momentum=0.9, weight_decay=0.5)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append({name: p.grad for name, p in used.items()})
    )
    accumulate(
        range(4),
        2,
        lambda n: used["always"].sum() + (used["once"].sum() if n == 1 else 0),
        lambda n: 1 + n,
        optimizer,
        clip=10.0,
    )
    assert seen[0]["never"] is None and used["never"].tolist() == [1, 1]
    assert seen[0]["once"].tolist() == pytest.approx([1 / 3] * 2) and seen[1]["once"] is None
    assert used["once"].tolist() == pytest.approx([1 - 0.1 * (1 / 3 + 0.5)] * 2)


def test_nothing_is_left_over_from_a_window_that_failed():
    run = Training()
    with pytest.raises(ZeroDivisionError):
        accumulate(
            [*TEN[:2], None],
            3,
            lambda b: loss_sum_of(run.model)(b) if b else 1 / 0,
            lambda b: 1,
            run.optimizer,
        )
    assert run.accumulated(TEN[:2], 2).differs_from(Training().at_once(TEN[:2], 2)) == []


# -- batch norm and learning rates -----------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_batch_norm_s_momentum_mends_what_it_forgets(k):
    """A constant input: the running mean goes from 0 to 1 - (1 - m), whether in one update or in
    k."""
    large, small, unmended = (
        nn.BatchNorm1d(1, momentum=0.1),
        nn.BatchNorm1d(1, momentum=batch_norm_momentum(0.1, k)),
        nn.BatchNorm1d(1, momentum=0.1),
    )
    large(torch.ones(8, 1))
    for _ in range(k):
        small(torch.ones(8, 1)), unmended(torch.ones(8, 1))
    assert (
        large.running_mean.item()
        == pytest.approx(0.1)
        == pytest.approx(small.running_mean.item(), rel=1e-6)
    )
    assert unmended.running_mean.item() == pytest.approx(1 - 0.9**k)


# -- what is refused -------------------------------------------------------------------------------


WHOLE, NORM = "let it return how many tokens", "give the largest norm that the gradient may have"
REFUSED = [
    (lambda run: run.accumulated([], 4), "There are no micro-batches"),
    (lambda run: update((), None, tokens, None), "holds no micro-batches"),
    *(
        (lambda run, k=k: run.accumulated(TEN, k), f"k is {k}: accumulate a whole number")
        for k in (0, -1, 2.5, True)
    ),
    *(
        (
            lambda run, rule=rule: run.accumulated(
                [TEN[0], (TEN[1][0], torch.full_like(TEN[1][1], -100))], 4, rule=rule
            ),
            "Micro-batch 1 .* 0 tokens",
        )
        for rule in RULES.values()
    ),
    *(
        (lambda run, clip=clip: run.accumulated(TEN, 4, clip=clip), f"clip is {clip}: {NORM}")
        for clip in (-1, 0, math.nan)
    ),
    (lambda run: run.accumulated(TEN, 2, rule=lambda counts: [0.5]), "1 factors for 2 micro-ba"),
    *(
        (lambda run, wrong=wrong: updated(run, optimizer=wrong), f"optimizer is a {name}: give")
        for wrong, name in (
            ([], "list"),
            (nn.Linear(1, 1), "Linear"),
            (torch.optim.LBFGS([nn.Parameter(torch.ones(1))]), "LBFGS"),
        )
    ),
    (lambda run: updated(run, lambda x: x.item()), "gave a float.* micro-batch 0 .*a scalar"),
    (lambda run: updated(run, lambda x: x.detach()), "gave a tensor without a graph"),
    (lambda run: updated(run, lambda x: x * torch.ones(3, 1)), r"a tensor of shape \(3, 1\)"),
    *(
        (lambda run, wrong=wrong: counted([0, 1], [2, wrong].__getitem__), f"batch 1 .*{WHOLE}")
        for wrong in (1.5, "4")
    ),
    *(
        (lambda run, of=of, rule=rule, counts=counts: of(rule, counts), told)
        for of in (noise_error, token_counts)
        for rule in RULES.values()
        for counts, told in (((), "holds no micro-batches"), ((3, 0), "Micro-batch 1 .* 0 tokens"))
    ),
    *(
        (lambda run, wrong=wrong: batch_norm_momentum(*wrong), "batch norm mixes by a share")
        for wrong in ((1.5, 2), (-0.1, 2), (0.1, 0))
    ),
]


def updated(run, change=lambda loss: loss, optimizer=None):
    """An update of two micro-batches by a changed loss, or with another optimizer."""
    return update(
        TEN[:2],
        lambda b: change(loss_sum_of(run.model)(b)),
        tokens,
        run.optimizer if optimizer is None else optimizer,
    )


@pytest.mark.parametrize("call, told", REFUSED)
def test_what_cannot_be_meant_is_refused_and_moves_nothing(call, told):
    run, before = Training(), Training()
    with pytest.raises(Impossible, match=told):
        call(run)
    assert run.gradients == [] and run.differs_from(before) == []
