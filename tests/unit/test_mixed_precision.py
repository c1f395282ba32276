"""The policy's types, the flow of a step, masters, and what is left when one of them is missing."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bigtrain_lab import Impossible
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import (
    DistributedDataParallel,
    MixedPrecision,
    precision_limits as limits,
)
from bigtrain_lab.techniques.mixed_precision import (
    LEVELS,
    DynamicLossScaler,
    Level,
    Policy,
    naive_mixed_training,
)

HALF, BF16, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


# -- the policy ------------------------------------------------------------------------------------


def numbers(*shape, dtype=FLOAT):
    return torch.linspace(0.1, 0.9, torch.Size(shape).numel()).reshape(shape).to(dtype)


LOW_CALLS = [
    lambda x: x @ x,
    lambda x: torch.mm(x, x),
    lambda x: F.linear(x, x, x[0]),
    lambda x: torch.einsum("ab,bc->ac", x, x),
    lambda x: x.matmul(x),
    lambda x: torch.bmm(x[None], x[None]),
    lambda x: torch.addmm(x, x, x),
    lambda x: torch.baddbmm(x[None], x[None], x[None]),
    lambda x: F.conv1d(x[None], x[:, :, None]),
    lambda x: F.conv_transpose2d(x[None, None], x[None, None]),
    lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    lambda x: x.mv(x[0]),
    lambda x: torch.linalg.multi_dot([x, x, x]),
]
FULL_CALLS = [
    lambda x: x.softmax(-1),
    lambda x: F.softmax(x, -1),
    lambda x: torch.log_softmax(x, 0),
    lambda x: F.layer_norm(x, (4,)),
    lambda x: F.layer_norm(x, (4,), x[0], x[0]),
    lambda x: F.rms_norm(x, (4,)),
    lambda x: F.group_norm(x, 2),
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.cross_entropy(x, torch.arange(4)),
    lambda x: F.nll_loss(x, torch.arange(4)),
    lambda x: F.mse_loss(x, x),
    lambda x: F.huber_loss(x, x),
    lambda x: F.binary_cross_entropy_with_logits(x, x),
    lambda x: F.kl_div(x, x, reduction="sum"),
    lambda x: x.exp(),
    lambda x: torch.log(x),
    lambda x: x**3,
    lambda x: 2**x,
    lambda x: torch.pow(x, 2),
    lambda x: x.square(),
    lambda x: x.rsqrt(),
    lambda x: 1 / x,
    lambda x: x.logsumexp(0),
    lambda x: x.sum(),
    lambda x: x.mean(0),
    lambda x: torch.cumsum(x, 0),
    lambda x: x.cumprod(1),
    lambda x: x.norm(),
    lambda x: torch.linalg.vector_norm(x),
    lambda x: x.var(),
    lambda x: torch.std(x),
    lambda x: F.cosine_similarity(x, x),
    lambda x: torch.cdist(x, x),
    lambda x: F.softplus(x),
    lambda x: x.prod(),
]


@pytest.mark.parametrize("low", [HALF, BF16])
@pytest.mark.parametrize("given", [HALF, BF16, FLOAT])
def test_products_are_low_and_what_needs_range_or_long_sums_is_float32(low, given):
    """And the values are those of the operator in that type."""
    x = numbers(4, 4, dtype=given)
    with Policy(low):
        products, sums = ([call(x) for call in calls] for calls in (LOW_CALLS, FULL_CALLS))
    assert all(torch.equal(y, call(x.to(low))) for y, call in zip(products, LOW_CALLS))
    assert all(torch.equal(y, call(x.float())) for y, call in zip(sums, FULL_CALLS))


def test_operators_of_several_tensors_take_the_widest():
    h, f = numbers(4, 4, dtype=HALF), numbers(4, 4)
    calls = [
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.stack((a, b)),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: torch.addcmul(a, a, b),
        lambda a, b: torch.lerp(a, b, 0.5),
        lambda a, b: torch.outer(a[0], b[0]),
        lambda a, b: torch.dot(a[0], b[0]),
        lambda a, b: a.scatter(0, torch.zeros(1, 4, dtype=torch.long), b),
        lambda a, b: torch.index_add(a, 0, torch.tensor([1]), b[:1]),
        lambda a, b: torch.tensordot(a, b, 1),
        lambda a, b: F.bilinear(a, b, torch.ones(2, 4, 4)),
    ]
    with Policy(HALF):
        for call in calls:
            assert call(h, f).dtype == call(f, h).dtype == FLOAT
        assert torch.dot(h[0], numbers(4, dtype=BF16)).dtype == FLOAT  # neither holds the other
        assert torch.stack([h, h]).dtype == HALF


IDS_IN, MASK = torch.tensor([[2049, 1]]), torch.tensor([True, False])
NEVER = {  # cast; what is made and the type that it has
    "sum of ids": (lambda x: IDS_IN.sum(), torch.int64),
    "cumsum of ids": (lambda x: IDS_IN.cumsum(1), torch.int64),
    "ids together": (lambda x: torch.cat([IDS_IN, IDS_IN]), torch.int64),
    "product of ids": (lambda x: IDS_IN @ IDS_IN.T, torch.int64),
    "rows": (lambda x: F.embedding(IDS_IN % 2, x.half()), HALF),
    "labels": (lambda x: F.cross_entropy(x.half(), torch.tensor([1, 0])), FLOAT),
    "double product": (lambda x: x.double() @ x.double(), DOUBLE),
    "double exponential": (lambda x: x.double().exp(), DOUBLE),
    "in place": (lambda x: x.half().clone().exp_(), HALF),
    "out": (lambda x: torch.mm(x, x, out=torch.empty(2, 2)), FLOAT),
}


@pytest.mark.parametrize("call, dtype", NEVER.values(), ids=NEVER)
def test_what_is_never_cast(call, dtype):
    with Policy(HALF):
        assert call(numbers(2, 2)).dtype == dtype
        assert IDS_IN.sum() == 2050


def test_a_composed_function_obeys_the_policy_inside():
    """What it is composed of runs by the lists: a softmax in float32, a product low."""
    triplet = F.triplet_margin_with_distance_loss  # its defaults stand behind a *
    attention = nn.MultiheadAttention(16, 1)
    with Policy(HALF):
        assert attention(*[numbers(3, 1, 16)] * 3)[0].dtype == HALF
        assert F.gumbel_softmax(numbers(2, 3, dtype=HALF)).dtype == FLOAT
        assert Policy(HALF).inside(triplet)(*[numbers(2, 3, dtype=HALF)] * 3).dtype == FLOAT
        assert nn.LSTM(4, 4)(numbers(2, 1, 4))[0].dtype == HALF
        encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        assert encoder(numbers(1, 3, 8)).dtype == FLOAT


CUDA = {  # the lists of torch's documentation of automatic mixed precision, by their names here
    HALF: (
        "matmul addbmm addmm addmv addr baddbmm bmm chain_matmul linalg_multi_dot conv1d conv2d"
        " conv3d conv_transpose1d conv_transpose2d conv_transpose3d gru_cell linear lstm_cell mm mv"
        " prelu rnn_tanh_cell rnn_relu_cell"
    ),
    FLOAT: (
        "pow __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh"
        " cosine_embedding_loss cdist cosine_similarity cross_entropy cumprod cumsum dist erfinv"
        " exp expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log10 log_softmax"
        " log1p log2 margin_ranking_loss mse_loss multilabel_margin_loss multi_margin_loss nll_loss"
        " norm normalize pdist poisson_nll_loss prod reciprocal rsqrt sinh smooth_l1_loss"
        " soft_margin_loss softmax softmin softplus sum renorm tan triplet_margin_loss"
    ),
    None: (
        "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add tensordot cat"
        " stack"
    ),
}


def test_the_tables_hold_those_of_autocast_for_cuda():
    rule = Policy(HALF).rule
    assert {
        name: to
        for to, names in CUDA.items()
        for name in names.split()
        if rule.get(name, "none") != to
    } == {}


# -- the flow --------------------------------------------------------------------------------------


class Net(nn.Module):
    """Tied, frozen, unused and normal weights, a norm, a running statistic and a float buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table, self.hidden, self.norm, self.batch_norm = (
            nn.Embedding(11, 8),
            nn.Linear(8, 8),
            nn.LayerNorm(8),
            nn.BatchNorm1d(8),
        )
        self.head, self.frozen, self.unused = (
            nn.Linear(8, 11, bias=False),
            nn.Linear(8, 8),
            nn.Linear(8, 8),
        )
        self.head.weight = self.table.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.full((8,), 0.1))

    def forward(self, ids):
        x = self.frozen(self.table(ids) + self.shift)
        return self.head(self.batch_norm(x + self.hidden(self.norm(x)).softmax(-1)))


IDS, LABELS = torch.tensor([1, 2, 3, 10]), torch.tensor([0, 5, 7, 9])


def at(level):
    """Levels that scale begin at 1,024: torch's 65,536 makes such short sums overflow and back off
    in their first steps."""
    return MixedPrecision(
        level,
        LEVELS[level].scaling
        and DynamicLossScaler(1024.0, half_gradients=not LEVELS[level].masters)
        or None,
    )


def learn(mp, model):
    with mp:
        loss = F.cross_entropy(model(IDS), LABELS)
    mp.backward(loss)


def trained(level, steps=4, optimizer_class=torch.optim.Adam, net=Net, lr=0.05, learn=learn):
    mp = at(level)
    model = mp.prepare(net())
    optimizer = optimizer_class(mp.parameters(), lr=lr)
    for _ in range(steps):
        learn(mp, model)
        mp.step(optimizer)
        optimizer.zero_grad()
    return mp, model, optimizer


def test_which_weights_are_half_and_which_have_masters():
    mp = MixedPrecision("fp16")
    model = mp.prepare(Net())
    types = {name: p.dtype for name, p in model.named_parameters()}
    assert {name for name, dtype in types.items() if dtype == FLOAT} == {
        "norm.weight",
        "norm.bias",
        "batch_norm.weight",
        "batch_norm.bias",
    }
    assert set(mp.state_dict()["masters"]) == {
        "table.weight",
        "hidden.weight",
        "hidden.bias",
        "unused.weight",
        "unused.bias",
    }
    assert model.head.weight is model.table.weight and {
        b.dtype for b in model.buffers() if b.is_floating_point()
    } == {FLOAT}
    assert all(p.dtype == FLOAT for p in mp.parameters()) and dict(
        mp.named_parameters()
    ).keys() == dict(model.named_parameters()).keys() - {"frozen.weight", "frozen.bias"}


def test_fp32_is_plain_training_to_the_bit():
    _, ours, _ = trained("fp32")
    plain = Net()
    optimizer = torch.optim.Adam([p for p in plain.parameters() if p.requires_grad], lr=0.05)
    for _ in range(4):
        F.cross_entropy(plain(IDS), LABELS).backward()
        optimizer.step(), optimizer.zero_grad()
    assert all(
        torch.equal(a, b) for a, b in zip(ours.state_dict().values(), plain.state_dict().values())
    )


def test_half_all_through_is_the_naive_training_to_the_bit():
    """At a scale that overflows in the first steps."""
    batches = [(torch.full((2, 3), x), torch.ones(2, 1)) for x in (-1.0, -0.5, 0.0, 0.5, 1.0) * 2]

    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss_of(model, batch):
        return F.mse_loss(*(each.half() for each in (model(batch[0].half()), batch[1])))

    scale, naive, ours = 2.0**20, net(), net()
    losses = naive_mixed_training(naive, loss_of, batches, torch.optim.Adam, scale=scale, lr=0.01)
    mp = MixedPrecision(Level("half", "float16", policy=False), DynamicLossScaler(scale))
    mp.prepare(ours)
    optimizer = torch.optim.Adam(mp.parameters(), lr=0.01)
    for batch, expected in zip(batches, losses):
        with mp:
            loss = loss_of(ours, batch)
        mp.backward(loss)
        mp.step(optimizer), mp.update(), optimizer.zero_grad()
        assert loss.item() == expected
    assert 4 * mp.scaler.get_scale() <= scale
    assert all(map(torch.equal, naive.parameters(), ours.parameters()))


def test_operators_alone_are_cast_as_by_autocast():
    """Apex's O1: weights and their gradients stay float32."""
    x, found = torch.linspace(-1, 1, 6).view(2, 3), []
    for ours in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        mp = MixedPrecision("O1", DynamicLossScaler(1024.0))
        model = mp.prepare(model) if ours else model
        with mp if ours else torch.autocast("cpu", HALF):
            loss = model(x).float().square().sum()
        (1024.0 * loss).backward()
        found.append([loss, *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found)) and {g.dtype for g in found[0]} == {FLOAT}


def test_sixteen_bits_throughout_add_up_in_float32():
    """Weights, activations and what the backward makes are bfloat16; masters and sums are not."""
    mp = MixedPrecision("bf16-throughout")
    model = mp.prepare(nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh()))
    with mp:
        outputs = [layer(torch.ones(2, layer.weight.shape[-1]).to(BF16)) for layer in model[:2]]
        mp.backward(sum(y.sum() for y in outputs))
    assert {t.dtype for t in (*outputs, *model.parameters())} == {BF16}
    assert {t.dtype for p in mp.parameters() for t in (p, p.grad)} == {FLOAT}


def test_micro_batches_add_up_in_float32():
    """1,024 + 0.25 + 0.25 + 0.25 is 1,024 in fp16, and 1,024.75 on the master."""
    mp = MixedPrecision(Level("half", "float16", scaling=False))
    model = mp.prepare(nn.Linear(1, 1, bias=False))
    for x in (1024.0, 0.25, 0.25, 0.25):
        with mp:
            mp.backward(model(torch.full((1, 1), x)).sum())
    assert mp.parameters()[0].grad.item() == 1024.75


def two_halves(scaler):
    """Two layers, an optimizer each, and where their masters began."""
    mp = MixedPrecision("fp16", scaler)
    model = mp.prepare(nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)]))
    for master in mp.parameters():
        nn.init.zeros_(master)
    return mp, model, [torch.optim.SGD([master], lr=1.0) for master in mp.parameters()]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_an_overflow_moves_nothing_of_its_optimizer_and_all_of_the_other(which, together):
    """Neither masters nor state; the weights are those of the masters, and the scale backs off."""
    mp, model, optimizers = two_halves(DynamicLossScaler(64.0))
    optimizers = [torch.optim.Adam(each.param_groups[0]["params"], lr=1.0) for each in optimizers]
    with mp:
        losses = [layer(torch.ones(1, 2)).sum() for layer in model]
        loss = losses[which] * 1e30 + losses[1 - which]
    mp.scale(loss).backward()
    if together:
        assert mp.step(*optimizers) is False
    else:
        assert [mp.step(each) for each in optimizers] == [bool(which), not which]
    mp.update()
    assert mp.scaler.get_scale() == 32 and not optimizers[which].state
    moved = [
        [master.unique().item(), *layer.weight.unique().tolist()]
        for master, layer in zip(mp.parameters(), model)
    ]
    assert moved[which] == [0, 0] and moved[1 - which] == pytest.approx([-1, -1])


@pytest.mark.parametrize("updates", [True, False])
def test_gradients_of_one_backward_are_divided_by_one_scale(updates):
    """Torch's loop: step each optimizer, then update; and the same without update. The scale
    doubles after each good step."""
    mp, model, optimizers = two_halves(DynamicLossScaler(64.0, growth_interval=1))
    for number in range(3):
        with mp:
            loss = sum(layer(torch.ones(1, 2)).sum() for layer in model)
        mp.scale(loss).backward()
        assert mp.scaler.get_scale() == 64 * 2**number
        assert [mp.step(optimizer) for optimizer in optimizers] == [True, True]
        if updates:
            mp.update(), mp.update()  # the second finds nothing to learn
        assert all((master == -1 - number).all() for master in mp.parameters())
        model.zero_grad()
    assert mp.state_dict()["scaler"]["scale"] == 64 * 2**3


def test_the_scale_waits_for_a_gradient_that_waits():
    """A second loss comes between two steps, and the second optimizer's gradient is the sum of
    both."""
    mp, model, (first, second) = two_halves(DynamicLossScaler(64.0, growth_interval=1))
    with mp:
        losses = [
            sum(layer(torch.ones(1, 2)).sum() for layer in model),
            model[1](torch.ones(1, 2)).sum(),
        ]
    mp.backward(losses[0])
    mp.step(first)
    mp.backward(losses[1])
    mp.step(second)
    assert mp.parameters()[1].unique().tolist() == [-2]


@pytest.mark.parametrize("level", ["fp16", "bf16"])
def test_weights_follow_masters_whoever_steps(level):
    """mp.scaler's own step, as one knows it from torch; an optimizer's bare step."""
    mp, model, optimizer = after_backward(level)
    master = dict(mp.named_parameters())["hidden.weight"]
    expected = master.detach() - 0.05 * master.grad / (1024 if mp.scaler else 1)
    (mp.scaler.step if mp.scaler else torch.optim.SGD.step)(optimizer)
    torch.testing.assert_close(master.detach(), expected)
    assert torch.equal(model.state_dict()["hidden.weight"], master.to(LEVELS[level].dtype))


def test_an_optimizer_that_writes_to_data_moves_weights_too():
    class Old(torch.optim.SGD):
        def step(self):
            for p in (p for p in self.param_groups[0]["params"] if p.grad is not None):
                p.data.sub_(p.grad)

    assert (
        trained("fp16", 1, optimizer_class=Old)[1]
        .hidden.weight.ne(Net().hidden.weight.half())
        .any()
    )


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_again_under_the_policy(reentrant, inside):
    """By mp.backward, and by torch's own backward inside `with mp`."""
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        mp = at("fp16")
        model = mp.prepare(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Softmax(-1), nn.Linear(8, 8))
        )
        x = numbers(3, 8).requires_grad_()
        with mp:
            y = checkpoint(model, x, use_reentrant=reentrant) if again else model(x)
            loss = y.square().sum()
            if inside:
                mp.scaler.scale(loss).backward()
        if not inside:
            mp.backward(loss)
        gradients.append([x.grad, *(p.grad for p in mp.parameters())])
    assert all(
        torch.equal(a, b) and a.isfinite().all() and a.any()
        for a, b in zip(*gradients, strict=True)
    )


# -- what is missing where a level leaves something out --------------------------------------------


SMALL, STEP = 2.0**-26, 2.0**-10  # half a unit in the last place below 1 in bf16, two in fp16


@pytest.mark.parametrize(
    "level, slope, lr, steps, found",
    [  # level, slope, rate, steps -> where one weight is that began at 1
        ("fp16-no-scaling", SMALL, 2.0**15, 1, 1.0),
        ("fp16-no-masters", SMALL, 2.0**15, 1, 1.0),  # unscaled, it had to go back into fp16
        *((level, SMALL, 2.0**15, 1, 1 - 2.0**-11) for level in ("fp16", "bf16", "fp32")),
        ("bf16-no-masters", STEP, 1.0, 64, 1.0),
        ("fp16-no-masters", STEP, 1.0, 64, 1 - 64 * STEP),
        ("fp16-no-masters", STEP / 8, 1.0, 64, 1.0),
        *((level, STEP, 1.0, 64, 1 - 64 * STEP) for level in ("fp16", "bf16")),
    ],
)
def test_small_gradients_need_scaling_and_small_steps_masters(level, slope, lr, steps, found):
    """A single weight, whose gradient is `slope`, is trained by SGD."""

    def learn(mp, model):
        with mp:
            y = model(torch.ones(1, 1, dtype=model.weight.dtype)).float()
        mp.backward((y * slope).sum())

    mp, *_ = trained(
        level,
        steps,
        torch.optim.SGD,
        lambda: nn.Linear(1, 1, bias=False).apply(lambda model: nn.init.ones_(model.weight)),
        lr,
        learn,
    )
    assert mp.parameters()[0].item() == found


@pytest.mark.parametrize("level", ["fp16-no-masters", "fp16-pure"])
def test_without_masters_adam_in_half_breaks_at_its_first_step(level):
    mp, model, _ = trained(level, steps=1)
    assert not torch.isfinite(model.hidden.weight).all()  # v = (1 - beta2) g^2 is 0, and so is eps
    assert torch.isfinite(trained("bf16-no-masters", steps=1)[1].hidden.weight).all()


W, NAN = torch.tensor([1.0, 2.0, 0.5, 4.0]), float("nan")


@pytest.mark.parametrize(
    "call, value",
    [  # what is computed, and its value
        # a tie goes to the even neighbour, 1; below 1 the units are finer
        (lambda: limits.unmoved([W], 2.0**-8, BF16), 0.75),
        # it was 1 in bf16 before the step
        (lambda: limits.unmoved([torch.tensor([1 + 0.9 * 2.0**-8])], 2.0**-9, BF16), 1),
        (lambda: limits.unmoved([W[:2], W[2:]], 2.0**-8, HALF), 0),
        (lambda: limits.unmoved([W], torch.tensor([0.0, 1, 1, 1]), FLOAT), 0.25),
        (
            lambda: limits.running_sum(1.0, 2100, HALF)[[2046, 2047, -1]].tolist(),
            [2047, 2048, 2048],
        ),
        (lambda: limits.running_sum(1.0, 300, BF16)[-1].item(), 256),
        (lambda: limits.running_sum(0.001, 10_000, HALF)[-1].item(), 4.0),
        (lambda: limits.adam_first_step(1e-3, HALF), float("-inf")),  # its eps is zero there
        (lambda: limits.adam_first_step(0.0, HALF), NAN),
        (lambda: limits.adam_first_step(1e-3, FLOAT), pytest.approx(-1, rel=1e-5)),
        (lambda: limits.adam_first_step(1e-3, BF16), pytest.approx(-1, rel=1e-2)),
    ],
)
def test_limits_are_those_of_counting(call, value):
    assert call() == (pytest.approx(NAN, nan_ok=True) if value is NAN else value)


# -- checkpoints, memory, mistakes -----------------------------------------------------------------


def test_masters_begin_anew_from_weights_that_are_loaded_and_keep_their_digits_otherwise():
    """Also where the loaded weights are others', as after a bare optimizer.step()."""
    mp, model, _ = trained("fp16", steps=1)
    digits = [p.clone() for p in mp.parameters()]
    model.load_state_dict(model.state_dict())
    assert all(map(torch.equal, digits, mp.parameters()))
    nn.init.constant_(master := dict(mp.named_parameters())["hidden.weight"], 0.1)
    model.load_state_dict({"norm.bias": torch.ones(8)}, strict=False)
    assert torch.equal(master, torch.full((8, 8), 0.1))
    model.load_state_dict({name: torch.ones_like(t) for name, t in model.state_dict().items()})
    assert all((p == 1).all() for p in mp.parameters())


def test_a_float32_checkpoint_that_is_loaded_late_keeps_its_digits():
    torch.manual_seed(5)
    source, target = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    mp = MixedPrecision("bf16")
    mp.prepare(target[0])
    target.load_state_dict(source.state_dict())  # through a module around it too
    assert all(
        torch.equal(master, p)
        for master, p in zip(mp.parameters(), source.parameters(), strict=True)
    )
    assert all(
        torch.equal(w, p.bfloat16()) and not torch.equal(w.float(), p)
        for w, p in zip(target.parameters(), source.parameters())
    )


def test_a_weight_unfrozen_later_gets_its_master():
    mp = MixedPrecision("bf16")
    model = nn.Linear(4, 4)
    model.weight.requires_grad_(False)
    mp.prepare(model).weight.requires_grad_(True)
    for total in (2, 4):  # a gradient that came before the master, and one after
        with mp:
            mp.backward(model(torch.ones(2, 4)).sum())
        assert all(p.dtype == FLOAT and (p.grad == total).all() for p in mp.parameters())
    before = model.weight.detach().clone()
    mp.step(torch.optim.SGD(mp.parameters(), lr=2.0**-14))
    assert torch.equal(mp.parameters()[0], before.float() - 2.0**-12)


@pytest.mark.parametrize("by_file", [True, False])
def test_a_prepared_model_can_be_saved_whole_and_copied_without_its_masters(by_file):
    mp, model, _ = trained("fp16", steps=1)
    with pytest.raises(Impossible, match="has no model, as a copy"):
        copy.deepcopy(mp).step(torch.optim.SGD(mp.parameters(), 0.1))
    if by_file:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = copy.deepcopy(model)
    masters = [m.clone() for m in mp.parameters()]
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    other.load_state_dict({name: torch.zeros_like(t) for name, t in other.state_dict().items()})
    with Policy(HALF):
        F.cross_entropy(other(IDS), LABELS).backward()
    assert other.head.weight.grad is not None and all(p.grad is None for p in mp.parameters())
    assert all(map(torch.equal, masters, mp.parameters())) and model.hidden.weight.any()


@pytest.mark.parametrize("level", ["bf16", "fp16"])
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda make: make.__name__)
def test_recurrent_modules_run_whole(make, level):
    mp = at(level)
    model = mp.prepare(make(4, 5, num_layers=2, bidirectional=True, batch_first=True))
    x, states = numbers(2, 3, 4).requires_grad_(), torch.zeros(4, 2, 5)
    packed = nn.utils.rnn.pack_padded_sequence(x, [3, 2], batch_first=True)
    with mp:
        outputs = [
            model(x)[0],
            model(x, (states, states) if make is nn.LSTM else states)[0],
            model(packed)[0].data,
        ]
        loss = sum(y.float().sum() for y in outputs)
    mp.backward(loss)
    assert {y.dtype for y in outputs} == {mp.level.dtype} and torch.equal(outputs[0], outputs[1])
    assert (
        x.grad.dtype == FLOAT
        and x.grad.any()
        and all(p.grad.dtype == FLOAT and p.grad.any() for p in mp.parameters())
    )


def prepared(level="fp16", module=None):
    mp = MixedPrecision(level)
    mp.prepare(module or nn.Linear(2, 2))
    return mp


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


MISTAKES = {
    "called .fp8.: choose one of fp32, bf16, bf16-throughout": lambda: MixedPrecision("fp8"),
    "scales no loss": lambda: MixedPrecision("bf16", DynamicLossScaler()),
    "is a GradScaler.*give a DynamicLossScaler": lambda: MixedPrecision(
        "fp16", torch.amp.GradScaler("cpu")
    ),
    "weight is float64": lambda: prepared(module=nn.Linear(2, 2).double()),
    "weight is float16": lambda: prepared(module=nn.Linear(2, 2).half()),
    "nn.ModuleDict": lambda: prepared().prepare(nn.Linear(2, 2)),
    "build it from mp.parameters": lambda: (mp := prepared()).step(sgd(mp.model.parameters())),
    "got a SGD: give it the model": lambda: prepared(module=sgd(nn.Linear(2, 2).parameters())),
    "of other masters": lambda: prepared().load_state_dict(
        prepared(module=nn.Linear(3, 2)).state_dict()
    ),
    "at the level that saved it": lambda: prepared().load_state_dict(prepared("fp32").state_dict()),
    "Weights of the model were replaced since prepare": lambda: steps_after_assigning(),
    "prepared at level bf16 .* call it inside `with mp:`": lambda: called(nn.Linear(2, 2)),
    "prepared at level bf16 .* inside `with mp:`": lambda: called(nn.Linear(2, 2), copy.deepcopy),
    "prepared at level bf16 .* it inside": lambda: called(
        nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2)])}), lambda model: model["a"][0]
    ),
}


def called(module, part=lambda model: model):
    """Inside the policy, and outside it, where a softmax would run in half and nobody say a word."""
    mp = MixedPrecision("bf16")
    model = mp.prepare(module)
    with mp:
        assert part(model)(torch.ones(1, 2)).dtype == BF16
    part(model)(torch.ones(1, 2))


def steps_after_assigning():
    mp = prepared("bf16")
    mp.model.load_state_dict(mp.model.state_dict(), assign=True)
    mp.step(sgd(mp.parameters()))


@pytest.mark.parametrize("sentence", MISTAKES)
def test_mistakes_are_sentences(sentence):
    with pytest.raises(Impossible, match=sentence):
        MISTAKES[sentence]()


def after_backward(level="fp16", optimizer_class=torch.optim.SGD):
    mp, model, optimizer = trained(level, steps=0, optimizer_class=optimizer_class)
    learn(mp, model)
    return mp, model, optimizer


class Wrapper(torch.optim.SGD):
    """Another optimizer steps inside."""

    def step(self, *_):
        torch.optim.SGD(self.param_groups[0]["params"], lr=0.1).step()


def test_bare_steps_of_true_gradients_are_let_through():
    """Divided ones, and those of another model."""
    mp, _, optimizer = after_backward()
    other = nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    sgd(other.parameters()).step()
    mp.unscale_(optimizer)
    optimizer.step()


def test_an_optimizer_inside_of_another_may_step():
    mp, _, optimizer = after_backward(optimizer_class=Wrapper)
    before = mp.parameters()[0].clone()
    assert mp.step(optimizer) and not torch.equal(before, mp.parameters()[0])


@pytest.mark.parametrize("level", ["fp16", "fp16-no-masters"])
def test_a_bare_step_of_scaled_gradients_is_refused_before_a_weight_moves(level):
    """It would take a step 1,024 times too long, and the half weights would follow."""
    mp, _, optimizer = after_backward(level)
    before = [p.clone() for p in mp.parameters()]
    with pytest.raises(Impossible, match=r"still 1,024 times too large: call mp.step\(optimizer\)"):
        optimizer.step()
    assert all(map(torch.equal, before, mp.parameters()))
    assert mp.step(optimizer) and not all(
        map(torch.equal, before, mp.parameters())
    )  # the loop goes on from there


def two_layers():
    mp = MixedPrecision("bf16")
    model = mp.prepare(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    return mp, model, torch.optim.SGD(mp.parameters(), lr=0.5)


def backward(mp, model):
    with mp:
        mp.backward(model(torch.ones(3, 4)).sum())


CLEARING = {
    "the model": lambda mp, model: model.zero_grad(),
    "each part": lambda mp, model: [part.zero_grad() for part in model],
    "a module around it": lambda mp, model: nn.ModuleList([model]).zero_grad(),
    "by hand": lambda mp, model: [setattr(p, "grad", None) for p in model.parameters()],
    "data parallel": lambda mp, model: DistributedDataParallel(model, Alone()).zero_grad(),
}


@pytest.mark.parametrize("way", CLEARING)
def test_gradients_that_are_cleared_in_any_way_are_gone(way):
    mp, model, optimizer = two_layers()
    backward(mp, model)
    once = [p.grad.clone() for p in mp.parameters()]
    model.cpu(), torch.autograd.grad(model[0].weight.float().sum(), model[0].weight)  # clear none
    backward(mp, model)
    assert all(torch.equal(p.grad, 2 * g) for p, g in zip(mp.parameters(), once))
    CLEARING[way](mp, model)
    backward(mp, model)
    assert all(torch.equal(p.grad, g) for p, g in zip(mp.parameters(), once))
    CLEARING[way](mp, model)
    assert all(p.grad is None for p in mp.parameters())
    before = [p.clone() for p in mp.parameters()]
    mp.step(optimizer)
    assert all(map(torch.equal, before, mp.parameters()))


def test_a_gradient_that_was_put_at_a_half_weight_is_its_master_s():
    mp, model, optimizer = two_layers()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = [p.clone() for p in mp.parameters()]
    mp.step(optimizer)
    assert all(torch.equal(p, old - 0.5) for p, old in zip(mp.parameters(), before))


WRITING = {
    "nn.init": lambda part: nn.init.constant_(part.weight, 0.25),
    "a part's load_state_dict": lambda part: part.load_state_dict(
        {"weight": torch.full((2, 4), 0.25), "bias": part.bias}
    ),
    "in place": lambda part: part.weight.detach().fill_(0.25),
}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("way", WRITING)
def test_what_is_written_to_half_weights_stays(way, trained):
    mp, model, optimizer = two_layers()
    if trained:
        backward(mp, model)
        mp.step(optimizer)
        optimizer.zero_grad()
    first = mp.parameters()[0].clone()
    WRITING[way](model[2])
    backward(mp, model)
    optimizer.param_groups[0]["lr"] = 0.0
    mp.step(optimizer)
    assert (model[2].weight == 0.25).all() and torch.equal(mp.parameters()[0], first)


def test_a_step_of_one_network_leaves_the_graphs_of_another():
    """Both are of one MixedPrecision, as a generator and what judges it."""
    mp = MixedPrecision("bf16")
    both = mp.prepare(nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)}))
    a, b = mp.parameters()[:2], mp.parameters()[2:]
    with mp:
        made = nn.Sequential(both["a"], nn.Tanh())(torch.ones(3, 4, requires_grad=True))
        loss = (made @ both["a"].weight).sum()
        mp.backward(both["b"](made.detach()).sum())
        assert mp.step(torch.optim.SGD(b, lr=0.1))
        mp.backward(loss)
    assert mp.step(torch.optim.SGD(a, lr=0.1))


@pytest.mark.parametrize("level", ["fp16", "bf16"])
def test_the_gradients_of_half_weights_refuse_all_use(level):
    """torch's clip would find those of norms alone, and its norm look plausible."""
    mp, model, optimizer = after_backward(level, torch.optim.Adam)
    for _ in range(2):
        model.to("cpu")  # and the stand-ins leave
        learn(mp, model)
        with pytest.raises(Impossible, match="their float32 masters': clip, read and zero those"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert nn.utils.clip_grad_norm_(mp.parameters(), 0.1) > 0 and mp.step(optimizer)
        learn(mp, model)
