"""ZeRO 1 and 2: the weights of one process; what would train wrongly is refused.

The bytes that are held and sent are proved by the plan (test_shard_plan) and by the lab."""

import copy
import gc
import time
import weakref
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from bigtrain_lab import Impossible
from bigtrain_lab.checks import ranks_differ, tensors_differ
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import (
    LAMB,
    LARS,
    ColumnParallelLinear,
    DistributedDataParallel,
    FullyShardedDataParallel,
    MixedPrecision,
    RowParallelLinear,
    ZeroOptimizer,
    saved_shards,
)
from bigtrain_lab.techniques.accumulate import update
from bigtrain_lab.techniques.clip import clip_grad_norm
from bigtrain_lab.techniques.guards.optimizers import OF_TORCH, looks_across
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler
from bigtrain_lab.techniques.shards import CUTS
from bigtrain_lab.techniques.tensor_parallel import Cut, cut_of
from bigtrain_lab.techniques.zero import NaiveZero

from .threads import WIDTH, Model, backward, on_processes, on_threads

ROWS, STEPS = 12, 4
OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=1e-2),
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-3),
    "lamb": partial(LAMB, lr=1e-2),
    "lars": partial(LARS, lr=1.0),
}


def clip(step):
    """Below every norm in every other step; a gradient that is too large by a factor shows in the
    others."""
    return 0.05 if step % 2 else 1e9


def groups(model):
    """Two, of other rates of decay."""
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    return [
        {"params": biases, "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if p.dim() > 1]},
    ]


def samples(step, rank=None, ranks=1, part=None):
    draw = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, ROWS, WIDTH, generator=draw, dtype=torch.float64)
    spare = (torch.arange(ROWS) < 2).double()[:, None]
    rows = slice(None) if rank is None else slice(rank, None, ranks)
    x, y, spare = x[rows], y[rows], spare[rows]
    return (x, y, spare) if part is None else (x[part::2], y[part::2], spare[part::2])


def alone(make):
    model, optimizer = (model := Model(spare=True)), make(groups(model))
    for step in range(STEPS):
        x, y, spare = samples(step)
        mse_loss(model(x, spare), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip(step))
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def naive(make, group):
    """As `trained` without clip, groups, or weights that some rank does not use."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH)).double()
    optimizer = make(model.parameters(), group)
    for step in range(STEPS):
        x, y, _ = samples(step, group.rank, group.size)
        mse_loss(model(x), y).backward()
        optimizer.step()
        getattr(optimizer, "zero_grad", model.zero_grad)()
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained(make, group, stage, backwards=1):
    """The weights of this rank."""
    model = Model(spare=True)
    model.first.bias.data += group.rank  # rank 0's are broadcast
    optimizer = ZeroOptimizer(groups(model), make, stage, group, bucket_bytes=300)
    for step in range(STEPS):
        for part in range(backwards):
            x, y, spare = samples(step, group.rank, group.size, part if backwards > 1 else None)
            with (
                optimizer.no_sync()
                if part + 1 < backwards and (stage == 1 or step % 2)
                else nullcontext()
            ):
                (mse_loss(model(x, spare), y) / backwards).backward()
        optimizer.clip_grad_norm_(clip(step))
        optimizer.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
    return model.state_dict()


WAYS = (1, 2), (2, 1), (2, 2)  # stages, backwards of a step


def learnt(group, names):
    found = {}
    for name, (stage, backwards) in product(names, WAYS):
        state = trained(OPTIMIZERS[name], group, stage, backwards)
        found |= {f"{name} {stage} {backwards}: {each}": state[each] for each in state}
    return found


@pytest.mark.parametrize(
    "over, ranks, names",
    [(on_threads, 3, OPTIMIZERS), (on_processes, 2, ["adam"])],
)
def test_ranks_learn_what_one_process_learns(over, ranks, names):
    """Every optimizer, both stages, clipping, accumulation."""
    for name, found in product(names, over(partial(learnt, names=names), ranks)):
        expected = alone(OPTIMIZERS[name])
        for stage, backwards in WAYS:
            key = f"{name} {stage} {backwards}"
            own = {each: found[f"{key}: {each}"] for each in expected}
            assert tensors_differ(own, expected) == [], key


def test_what_buckets_learn_the_naive_one_learns():
    adam = {"optimizer_class": torch.optim.Adam, "lr": 1e-2}
    expected = naive(lambda params, _: torch.optim.Adam(params, lr=1e-2), Alone())
    for way in (
        lambda params, group: NaiveZero(params, group=group, **adam),
        lambda params, group: ZeroOptimizer(params, group=group, bucket_bytes=100, **adam),
    ):
        assert ranks_differ(on_threads(partial(naive, way), 3), expected) == []


@pytest.mark.parametrize("heads", ["ab", "ba", "aab"])
@pytest.mark.parametrize("bucket_bytes", [64, 1000])
def test_backwards_through_different_heads_add_up(bucket_bytes, heads):
    def program(group):
        torch.manual_seed(0)
        model = nn.ModuleDict({part: nn.Linear(4, 4, bias=False) for part in ("trunk", "a", "b")})
        made = partial(torch.optim.SGD, lr=0.1)
        optimizer = made(model.parameters())
        if group.size > 1:
            optimizer = ZeroOptimizer(
                model.parameters(), made, 2, group, bucket_bytes=bucket_bytes, allow_unused=True
            )
        for head in heads:
            model[head](model["trunk"](torch.ones(1, 4))).sum().backward()
        optimizer.step()
        return model.state_dict()

    (one,) = on_threads(program, 1)
    assert ranks_differ(on_threads(program, 2), one, 1e-6) == []


@pytest.mark.parametrize(
    "wrap",
    [
        partial(DistributedDataParallel, group=Alone()),
        lambda module: ZeroOptimizer(module.parameters(), torch.optim.SGD, group=Alone()),
        partial(FullyShardedDataParallel, group=Alone()),
    ],
)
def test_weights_go_with_what_wrapped_them(wrap):
    module = nn.Linear(2, 2)
    wrapped, weight = wrap(module), weakref.ref(module.weight)
    module(torch.ones(1, 2)).sum().backward()
    del module, wrapped
    for _ in range(100):  # the lane's thread lets its last message go a moment later
        gc.collect()
        if weight() is None:
            return
        time.sleep(0.1)
    raise AssertionError("the weight is held")


def test_what_is_loaded_into_half_weights_reaches_their_masters_and_a_checkpoint(tmp_path):
    model = nn.Linear(5, 3).bfloat16()
    optimizer = ZeroOptimizer(model.parameters(), torch.optim.SGD, group=Alone(), lr=1e-4)
    for _ in range(2):  # the second load comes when a step has made the masters
        nn.init.ones_(model.weight)
        saved_shards.save(tmp_path, optimizer, optimizer)
        model(torch.ones(4, 5, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept = saved_shards.whole(tmp_path)["weights"]["0"]
        # less than half a unit of bfloat16 away
        assert kept.bfloat16().eq(1).all() and model.weight.eq(1).all()


class Trust(torch.optim.SGD):
    """A stranger's: clips by the norm of all that it has."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(
            [p for group in self.param_groups for p in group["params"]], 50.0
        )
        return super().step(closure)


class Late(Trust):
    """Clips from its sixth step on."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        return Trust.step(self) if self.steps > 5 else torch.optim.SGD.step(self)


class Large(Trust):
    """Clips large tensors alone."""

    def step(self, closure=None):
        is_large = self.param_groups[0]["params"][0].numel() > 4000
        return Trust.step(self) if is_large else torch.optim.SGD.step(self)


class Rows(torch.optim.SGD):
    """Keeps a number of each row, for later."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["rows"] = torch.ones(len(p))
        return super().step(closure)


class Wrapped(torch.optim.Optimizer):
    """A stranger's: state from the start, parameters known elsewhere too, another optimizer inside,
    a list of what it did."""

    def __init__(self, params, **kwargs):
        self.inner, self.calls = torch.optim.SGD(params, **kwargs), []
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self.scale = {p: 0.1 for group in self.param_groups for p in group["params"]}
        for p in self.scale:
            self.state[p]["mean"] = torch.ones_like(p)

    @torch.no_grad()
    def step(self, closure=None):
        self.calls.append(self.inner.step())
        for p in self.param_groups[0]["params"]:
            p.sub_(self.state[p]["mean"], alpha=self.scale[p])


class Noise(torch.optim.SGD):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.data.add_(torch.randn_like(p))


class OwnNoise(Noise):
    element_wise = True


def over_pieces():
    model = FullyShardedDataParallel(nn.Linear(4, 6), Alone())
    model(torch.ones(2, 4)).square().sum().backward()
    model.finish_gradient_synchronization()
    return [*model.parameters()]


def over_slices():
    model = nn.ModuleList([ColumnParallelLinear(4, 6, Alone()), RowParallelLinear(6, 4, Alone())])
    column, row = model  # as if others had the rest of them
    CUTS.update({column.weight: Cut(0), column.bias: Cut(0), row.weight: Cut(1)})
    model[1](model[0](torch.ones(2, 4))).square().sum().backward()
    return [*model.parameters()]


def muon(params, **kwargs):
    params = list(params)
    if isinstance(params[0], dict):
        params = params[0]["params"]
    return torch.optim.Muon([p for p in params if p.dim() == 2], **kwargs)


WHOLE = {
    "Muon": muon,
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": torch.optim.LBFGS,
    **{kind.__name__: kind for kind in (Trust, Late, Large, Rows)},
    "Noise": Noise,
    "LAMB": LAMB,
    "LARS": LARS,
    "LAMB, another group": lambda params: LAMB(params, group=Alone()),
}
PLAIN = [
    *(partial(kind, lr=0.1) for kind in OF_TORCH),
    partial(torch.optim.Adam, lr=torch.tensor(0.0), fused=True),
    partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    partial(Wrapped, lr=0.1),
    partial(OwnNoise, lr=0.1),
    partial(LAMB, group=Alone(), pieces=lambda p: True),
]


@pytest.mark.parametrize("over", [over_pieces, over_slices])
def test_an_optimizer_that_needs_whole_tensors_is_refused_before_it_moves_parts(over):
    """Others step as if nobody had tried them, from their own state on, and draw the numbers that
    they would."""
    for name, make in WHOLE.items():
        parameters = over()
        before = [p.detach().clone() for p in parameters]
        optimizer = make(parameters)
        if name == "LAMB, another group" and over is over_slices:
            continue  # which knows slices
        draws = torch.get_rng_state()
        for _ in range(2):
            with pytest.raises(
                Impossible,
                match=(
                    f"^{name.split(',')[0]} (looks across|could not be tried \\(.+\\) on) the"
                    " elements"
                ),
            ) as refused:
                optimizer.step()
        assert "\n" not in str(refused.value) and all(
            map(torch.equal, [draws, *parameters], [torch.get_rng_state(), *before])
        )
    for make in PLAIN:
        parameters = over()
        copies = [nn.Parameter(p.detach().clone()) for p in parameters]
        for each, p in zip(copies, parameters):
            each.grad = p.grad.clone()
        draws, optimizers = torch.get_rng_state(), [make(parameters), make(copies)]
        for optimizer in optimizers:
            torch.set_rng_state(draws)
            optimizer.step()
        assert all(map(torch.equal, parameters, copies)), optimizers[0]
        assert not isinstance(optimizer, Wrapped) or len(optimizers[0].calls) == 1
        known = type(optimizer) in OF_TORCH
        assert not known or not any(looks_across(optimizer, 0, p, cut_of(p)) for p in parameters)


def test_optimizers_of_one_class_and_equal_settings_are_tried_once():
    steps, tried = [], []

    class Counted(torch.optim.SGD):
        def step(self, closure=None):
            steps.append(self)
            return super().step(closure)

    for rate in (0.1, 0.1, 0.2, torch.tensor(0.1), torch.tensor(0.1)):
        steps.clear()
        Counted(over_pieces(), lr=rate).step()
        tried.append(len(steps) > 1)
    assert tried == [True, False, True, True, True]


def made(module=None, stage=1, make=torch.optim.SGD, group=Alone()):
    module = module or nn.Linear(2, 2)
    return module, ZeroOptimizer(module.parameters(), make, stage, group, lr=1)


@pytest.mark.parametrize(
    "clip", [torch.nn.utils.clip_grad_norm_, partial(clip_grad_norm, group=Alone())]
)
@pytest.mark.parametrize("stage, finish", [(1, True), (2, True), (2, False)])
def test_a_clip_of_gradients_that_have_left_is_refused(stage, finish, clip):
    module, optimizer = made(stage=stage)
    backward(module)
    if finish:
        optimizer.finish_gradient_synchronization()
    with pytest.raises(Impossible, match="used after it had left .*clip by its clip_grad_norm_"):
        clip(module.parameters(), 0.1)


def updated(make, scaler):
    model, dtype = Model(spare=True), torch.float32 if scaler else torch.float64
    optimizer, scaler = make(model.to(dtype).parameters()), scaler and scaler()
    for step in range(3):
        window = [[each.to(dtype) for each in samples(step, part=part)] for part in range(2)]
        update(
            window,
            lambda each: 1e3 * model(each[0], each[2]).pow(2).sum(),
            lambda each: len(each[0]),
            optimizer,
            clip=0.01,
            scaler=scaler,
        )
    return model.state_dict()


@pytest.mark.parametrize("scaler", [None, DynamicLossScaler])
def test_accumulate_clips_by_the_optimizer_s_own_function(scaler):
    make = partial(ZeroOptimizer, optimizer_class=torch.optim.SGD, stage=2, group=Alone(), lr=1.0)
    expected = updated(partial(torch.optim.SGD, lr=1.0), scaler)
    # a scaled loss is float32
    assert tensors_differ(updated(make, scaler), expected, 1e-5 if scaler else 1e-12) == []


def with_masters(given, prepared_first=True, **options):
    model, mp = nn.Linear(2, 2), MixedPrecision("bf16")
    if prepared_first:
        mp.prepare(model, **options)
    optimizer = ZeroOptimizer(given(model, mp), torch.optim.SGD, 2, Alone(), lr=0.5)
    if not prepared_first:
        mp.prepare(model)
    with mp:
        loss = model(torch.ones(1, 2)).sum()
    mp.backward(loss)
    mp.step(optimizer)
    return model


@pytest.mark.parametrize(
    "given", [lambda model, mp: model.parameters(), lambda model, mp: mp.parameters()]
)
def test_half_weights_without_masters_are_prepared_before(given):
    assert with_masters(given, masters=False).bias.dtype == torch.bfloat16


def moved():
    module, optimizer = made()
    backward(module)
    module.weight.data = torch.zeros(2, 2)
    optimizer.step()


def kept():
    module, optimizer = made()
    for _ in range(2):
        backward(module)
        optimizer.step()


def changed(before=lambda *_: None, after=lambda *_: None):
    module, optimizer = made()
    before(module, optimizer.param_groups[0]["params"][1])
    backward(module)
    optimizer.clip_grad_norm_(1.0)
    after(module)
    optimizer.step()


def unused(by_hand=None):
    module, optimizer = made(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), stage=2)
    module[1].bias.grad = by_hand
    backward(module[0])
    optimizer.step()


def scaled_by_torch():
    (module, optimizer), scaler = made(), torch.amp.GradScaler("cpu")
    scaler.scale(module(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizer)


def written(group):
    module, optimizer = made(group=group)
    optimizer.param_groups[0]["params"][0].data.mul_(2)
    backward(module)
    optimizer.step()


@pytest.mark.parametrize(
    "mistake, words",
    [
        (
            lambda: with_masters(lambda model, mp: mp.parameters()),
            "by prepare.model, masters=False., and give model.parameters",
        ),
        (
            lambda: with_masters(lambda model, mp: model.parameters()),
            "The weights have masters already",
        ),
        (
            lambda: with_masters(lambda model, mp: model.parameters(), prepared_first=False),
            "prepare the model before it, by",
        ),
        (
            lambda: with_masters(lambda model, mp: over_slices()),
            "^The parameters are slices: take a Recipe, with slices= and zero=2, or",
        ),
        (scaled_by_torch, "not by torch's GradScaler"),
        (
            lambda: made()[1].load_state_dict(made()[1].state_dict() | {"rank": (1, 2)}),
            "is of rank 1 of 2, and this is rank 0 of 1",
        ),
        (lambda: copy.deepcopy(made()[1]), "cannot be copied"),
        (
            lambda: made()[1].add_param_group({"params": nn.Linear(2, 2).parameters()}),
            "give all groups when",
        ),
        (lambda: made(stage=3), "FullyShardedDataParallel"),
        *(
            (partial(made, make=WHOLE[name]), f"{name} looks")
            for name in ("Muon", "Adafactor", "Trust")
        ),
        (
            partial(made, make=torch.optim.LBFGS),
            "LBFGS could not be tried .*'closure'.*element_wise",
        ),
        (moved, "Parameter 0 on rank 0 was .* and is float32 of shape .*in other memory"),
        (kept, "zero_grad"),
        (
            partial(changed, after=nn.Module.zero_grad),
            "parameter 0 on rank 0 was replaced or dropped after it had left",
        ),
        (
            partial(changed, lambda _, piece: piece.register_hook(torch.abs)),
            "piece of 1 on rank 0 has hooks",
        ),
        (
            partial(changed, lambda _, piece: nn.init.zeros_(piece)),
            "Pieces on rank 0 were written to since the last step",
        ),
        (lambda: on_threads(written, 2), "Pieces on rank . were written to since"),
        (partial(unused, torch.ones(2)), "gradient of 3 on rank 0 was set by hand"),
        (lambda: made(nn.ParameterList([torch.ones(2)] * 2)), "share their memory"),
        (unused, "Parameters got no gradient, on rank 0: 3, 2"),
    ],
)
def test_bad_input_is_one_sentence(mistake, words):
    with pytest.raises(Impossible, match=words):
        mistake()
