"""A dry run finds what torch, the ledger and the papers count: storages, FLOPs, bytes moved."""

import gc
import random
import sys
import weakref
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from math import prod

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from bigtrain_lab import Action, Hardware, Impossible, Optimizer
from bigtrain_lab.core import grouped
from bigtrain_lab.core.later import compiler_asleep
from bigtrain_lab.experiments.layered import whole_layers
from bigtrain_lab.experiments.pipeline import run_slice, slice_run
from bigtrain_lab.models import (
    GPT,
    GPTConfig,
    GPTStage,
    Noise,
    cross_entropy,
    gpt_steps,
    layered_mlp,
    mlp_steps,
    parameter_bytes,
    parameter_shapes,
    parameters,
    peak_bytes,
    saved_bytes,
    theory,
)
from bigtrain_lab.runtime import Ledger
from bigtrain_lab.runtime.devices import built
from bigtrain_lab.runtime.memory import owned
from bigtrain_lab.train import HALVES, WHOLE
from bigtrain_lab.train.dry_run import DryRank, Journal, Journals, Operators, Work, dry_run
from bigtrain_lab.train.forms import by_terms
from tests.unit.sizes import DROPPED, NOISE, SMALL

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 1e-3),
    "momentum": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-3),
    "adam-fused": lambda p: torch.optim.Adam(p, 1e-3, fused=True),
}

SGD, ADAM = map(Optimizer.named, ("sgd", "adam"))


# Storage by storage, against a witness that knows nothing of the library


class Witness(TorchDispatchMode):
    """Bytes of every storage that any operator returns, from its birth to its death; nothing of the
    library in it."""

    def __init__(self, *given):
        super().__init__()
        self.alive, self.born, self.now, self.levels, self.action = {}, {}, 0, [], ""
        for tensor in given:
            self.alive[tensor.untyped_storage()._cdata] = 0  # the caller's own

    def count(self, tensor):
        storage = tensor.untyped_storage()
        if (at := storage._cdata) not in self.alive:
            self.alive[at] = storage.nbytes()
            self.now += storage.nbytes()
            self.levels.append((self.action, self.now))
            weakref.finalize(storage, self.gone, at)

    def gone(self, at):
        self.now -= self.alive.pop(at)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returned = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor)
        return returned

    @contextmanager
    def during(self, action):
        self.action = action
        yield
        self.ends[action] = self.now

    def train(self, model, loss_of, optimizer, steps):
        self.ends = {}
        update = OPTIMIZERS[optimizer](model.parameters())
        for weight in model.parameters():
            self.count(weight)
        with self:
            for step in range(steps):
                with self.during(f"0F{step}"):
                    loss = loss_of()
                with self.during(f"0B{step}"):
                    loss.backward()
                with self.during(f"0U{step}"):
                    update.step()
                    update.zero_grad()
        return self


def differences(account, seen):
    """Where the witness saw another level at any birth, or at an action's end."""
    told = grouped(
        (action, level)
        for (action, name), level in zip(account.moments, account.levels)
        if action and name != "end"
    )
    found = grouped((action, level) for action, level in seen.levels if action)
    return [
        *(action for action in found if found[action] != told[action]),
        *(
            action
            for action, level in seen.ends.items()
            if sum(account.after(action).values()) != level
        ),
    ]


# Each makes an account by a dry run, the real model, its loss, its optimizer, what it was given


def random_gpt(seed):
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    config = GPTConfig(
        layers=draw.randint(1, 3),
        width=heads * draw.randint(2, 12),
        heads=heads,
        sequence=draw.randint(1, 24),
        vocabulary=draw.randint(2, 300),
        dropout=draw.choice([0, 0.1]),
        tied=draw.random() < 0.3,
        dtype=draw.choice([torch.float32, torch.float32, torch.float64]),
    )
    batch, optimizer = draw.randint(1, 6), draw.choice(["adam", "adam-fused", "sgd", "momentum"])
    model, ids = GPT(config), torch.randint(config.vocabulary, (batch, config.sequence))
    return (
        gpt_steps(config, batch, optimizer),
        model,
        lambda: cross_entropy(model(ids, Noise(0, 0, 0)), ids),
        optimizer,
        (ids,),
    )


def random_mlp(seed):
    draw = random.Random(seed)
    sizes, batch, dtype = (
        [draw.randint(1, 60) for _ in range(draw.randint(2, 5))],
        draw.randint(1, 50),
        draw.choice([torch.float32, torch.float64]),
    )
    layers = [
        layer
        for inner, outer in zip(sizes, sizes[1:])
        for layer in (nn.Linear(inner, outer, dtype=dtype), nn.ReLU())
    ][:-1]
    model, x, targets = (
        nn.Sequential(*layers),
        torch.randn(batch, sizes[0], dtype=dtype),
        torch.randint(sizes[-1], (batch,)),
    )
    optimizer = draw.choice(list(OPTIMIZERS))
    return (
        mlp_steps(sizes, batch, optimizer, dtype),
        model,
        lambda: cross_entropy(model(x), targets),
        optimizer,
        (x, targets),
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("drawn", [random_gpt, random_mlp])
def test_storages_are_those_that_torch_holds(drawn, seed):
    account, model, loss_of, optimizer, given = drawn(seed)
    assert differences(account, Witness(*given).train(model, loss_of, optimizer, 2)) == []


def test_the_library_s_own_mlp_has_no_bias():
    (model,), x, targets = layered_mlp(4, 16), torch.randn(8, 16), torch.randint(16, (8,))
    seen = Witness(x, targets).train(model, lambda: cross_entropy(model(x), targets), "adam", 2)
    assert mlp_steps([16] * 5, 8, bias=False).peak_of(1) == max(
        level for action, level in seen.levels if action.endswith("1")
    )


@pytest.mark.parametrize(
    "config, batch",
    [
        (GPTConfig(layers=2, width=32, sequence=20), 3),
        (GPTConfig(layers=2, width=64, sequence=40, tied=True), 4),
    ],
)
def test_unobserved_the_peak_is_that_of_torch_s_allocator(config, batch):
    """The profiler hears every allocation, also inside kernels: they add a few scalars here."""
    model, ids = GPT(config), torch.randint(config.vocabulary, (batch, config.sequence))
    update, held = (
        torch.optim.Adam(model.parameters()),
        [sum(weight.nbytes for weight in model.parameters())],
    )
    with torch.profiler.profile(profile_memory=True) as profile:
        for _ in range(2):
            loss = cross_entropy(model(ids), ids)
            loss.backward()
            update.step()
            update.zero_grad()
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held.append(held[-1] + event.nbytes())
    unobserved, watched = gpt_steps(config, batch, watched=False), gpt_steps(config, batch)
    assert 0 <= max(held) - unobserved.peak_bytes <= 64
    assert watched.peak_bytes > unobserved.peak_bytes


# The papers


def test_the_closed_forms_of_a_training_step():
    """16 bytes a parameter under Adam in float32; three of the logits' size at the loss; what
    autograd saves."""
    config, batch = GPTConfig(layers=2, width=16, heads=2, sequence=8, vocabulary=5000), 16
    account, P = gpt_steps(config, batch), theory.gpt_weights(config)
    tensors, logits = len(parameter_shapes(config)), batch * 8 * 5000 * 4
    assert account.after("0U0") == {
        "weights": 4 * P,
        "optimizer": 8 * P + 4 * tensors,
        "temporaries": 4,
    }
    ended = account.after("0B1")
    assert ended.pop("temporaries") == 4 and sum(ended.values()) == 16 * P + 4 * tensors
    assert account.after("0F1")["activations"] == sum(
        row.bytes for row in saved_bytes(config, 0, config.pieces, batch)
    )
    assert account.peak_of(1) - account.peak_of(0) == 8 * P + 4 * tensors  # both are at the loss
    assert [row.bytes for row in account.at_peak()[:3]] == [logits] * 3
    assert account.moments[account.peak_moment].action == "0B1"
    held = (
        account.levels[account.peak_moment]
        - 12 * P
        - account.after("0F1")["activations"]
        - 2 * logits
    )
    assert 0 < held < 0.001 * account.peak_bytes, "12 P + activations + 2 B S V z, and small change"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_have_the_closed_form_and_are_those_of_the_module(tied, dtype):
    config = replace(SMALL, tied=tied, dtype=dtype)
    assert (
        parameters(config)
        == theory.gpt_weights(config)
        == sum(p.numel() for p in GPT(config).parameters())
    )
    for first, last in ((0, 2), (1, 3), (2, 5)) if not tied else ((0, 5),):
        weights = dict(GPTStage(config, first, last).named_parameters())
        assert parameter_shapes(config, first, last) == {
            name: tuple(w.shape) for name, w in weights.items()
        }
        assert parameter_bytes(config, first, last) == sum(w.nbytes for w in weights.values())


CUTS = (0, 1, {}), (0, 3, {"precision": "bf16", "clip": 1.0}), (1, 3, {"recompute": whole_layers})
SLICED = (1, 2, {"slices": 2, "sequence_parallel": True}), (4, 5, {"slices": 2})


@pytest.mark.parametrize(("first", "last", "further"), CUTS + SLICED)
def test_what_a_slice_does_at_one_size_is_told_by_dry_runs_of_others(
    first, last, further, monkeypatch
):
    """To the byte, by forms that their check let pass."""
    rng, forms = random.Random(last), []

    def seen(*about):
        forms.append(by_terms(*about))
        return forms[-1]

    monkeypatch.setattr("bigtrain_lab.train.forms.by_terms", seen)
    heads, kept = 2 * rng.randint(1, 2), run_slice.__wrapped__
    sizes = [rng.randint(2, 6), 2 * rng.randint(2, 9), heads * rng.randint(2, 9), 256]
    config = GPTConfig(layers=3, heads=heads, dropout=rng.choice((0, 0.1)))
    for at, unit in (None, 0), (0, 1), (1, 2), (2, heads), (3, 2):
        if unit:
            sizes[at] += unit * rng.randint(1, 40)
        named = dict(zip(("sequence", "width", "vocabulary"), sizes[1:]))
        found = slice_run(
            replace(config, **named), first, last, sizes[0], ADAM, replicas=2, **further
        )
        about = replace(config, layers=max(1, last - first - (first == 0) - (last == 5)))
        start = min(first, 2) if last == 5 else first
        own = kept(about, start, start + last - first, ADAM, WHOLE, 2, (*further.items(),), sizes)
        assert found == own
    assert len(forms) == 4 - (0 < first and last < 5)
    assert all(factors is not None for _, factors in forms)


def test_flops_and_saved_bytes_of_a_block_have_the_closed_form():
    config, B = GPTConfig(layers=3, width=48, heads=6, sequence=20), 5
    for first, last, flops in (
        (1, 2, theory.block_flops(config, B)),
        (0, config.pieces, theory.forward_flops(config, B)),
    ):
        run = slice_run(config, first, last, B, SGD)
        assert (run.work("F").flops, run.work("B").flops) == (flops, 2 * flops)
    for each in (config, replace(config, dropout=0.1), replace(config, fused_attention=True)):
        assert sum(row.bytes for row in saved_bytes(each, 1, 3, B)) - sum(
            row.bytes for row in saved_bytes(each, 1, 2, B)
        ) == theory.block_saved_bytes(each, B)


# Stages of a pipeline, against what torch counts when they run

SLICES = [(0, 1), (0, 2), (1, 2), (2, 4), (4, 5), (3, 5), (0, 5)]


def given_to(config, first, batch):
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(config.vocabulary, (batch, config.sequence), generator=draw)
    if first == 0:
        return targets, targets
    return (
        torch.randn(
            batch, config.sequence, config.width, dtype=config.torch_dtype, generator=draw
        ).requires_grad_(),
        targets,
    )


def forward(stage, x, targets, noise=NOISE):
    y = stage(x, noise)
    return cross_entropy(y, targets) if stage.last == stage.config.pieces else y


@pytest.mark.parametrize("first, last", SLICES)
def test_flops_equal_torchs_counter(first, last):
    batch = 1 + 3 * (last % 2)
    for config in (SMALL, DROPPED, replace(SMALL, heads=1, sequence=1)):
        stage, (x, targets) = GPTStage(config, first, last), given_to(config, first, batch)
        with FlopCounterMode(display=False) as forwards:
            y = forward(stage, x, targets)
        with FlopCounterMode(display=False) as backwards:
            y.sum().backward()
        whole, halves = (
            slice_run(config, first, last, batch, SGD, rehearsal) for rehearsal in (WHOLE, HALVES)
        )
        assert (whole.work("F").flops, whole.work("B").flops) == (
            forwards.get_total_flops(),
            backwards.get_total_flops(),
        )
        assert halves.work("I").flops + halves.work("W").flops == backwards.get_total_flops()


class OperatorBytes(TorchDispatchMode):
    """Inputs read once and outputs written once, for every operator that is neither a matmul nor a
    view; nothing of the library in it."""

    FREE = (
        "mm",
        "bmm",
        "addmm",
        "view",
        "t",
        "transpose",
        "permute",
        "expand",
        "_unsafe_view",
        "select",
        "slice",
        "unbind",
        "detach",
        "empty",
        "unsqueeze",
        "squeeze",
        "reshape",
        "alias",
        "gather",
        "scatter_add",
    )  # touches one value a token; out of place only because this mode watches

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        written = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        if name == "embedding":
            self.bytes += 2 * result.nbytes  # reads the rows it was asked for, not the table
        elif name not in self.FREE:
            self.bytes += sum(
                t.nbytes for t in [*([] if name in ("bernoulli_", "fill_") else tensors), *written]
            )
        return result


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("first, last", SLICES)
def test_moved_bytes_are_near_what_the_operators_move(first, last, dropout):
    config, batch = GPTConfig(layers=3, width=128, heads=4, sequence=64, dropout=dropout), 8
    stage, (x, targets) = GPTStage(config, first, last), given_to(config, first, batch)
    with OperatorBytes() as forwards:
        y = forward(stage, x, targets)
    gradient = torch.ones_like(y)
    with OperatorBytes() as backwards:
        y.backward(gradient)
    run = slice_run(config, first, last, batch, SGD)
    assert run.work("F").moved_bytes == pytest.approx(forwards.bytes, rel=0.01)
    assert run.work("B").moved_bytes == pytest.approx(backwards.bytes, rel=0.01)


# Any program, against a ledger of the same with values


def really(program):
    """The actions of the program on the CPU, with values."""

    class Real(DryRank):
        device = torch.device("cpu")

    journal, operators = Journal(), Operators()
    ledger = Ledger(device=Real.device, wall=count(1).__next__, balance=Journals([journal]))
    with ledger:
        program(Real(ledger, operators, [journal]))
    return journal.actions


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize(
    "made", [nn.Linear, lambda *sizes: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)]
)
def test_shapes_of_products_are_told_of_no_rows_too(made, rows):
    def program(rank):
        with torch.device("meta"):
            module, x = made(4, 4), torch.zeros(rows, 5, 4)
        with rank.span((Action("F", 0, 0),)):
            module(x)
        return {}

    acted = dry_run(program).actions["0F0"]
    assert acted.products and sum(2 * prod(shape) for shape in acted.products) == acted.work.flops


UNSEEN = {"work": None, "products": ()}  # of an action on real tensors
ODD = {
    "views in place": lambda x: x.clone().t_().unsqueeze_(0).squeeze_() * x.T,
    "a view that does not say so": lambda x: x.view(2, 2, 8) @ x.view(2, 8, 2),
    "a mean of squares": lambda x: nn.functional.mse_loss(x, x.detach() + 1),
    "a smooth mean": lambda x: nn.functional.smooth_l1_loss(x, x.detach() + 1),
    "several results": lambda x: torch.stack([part.sin() for part in x.split(2)]) + x.max(0).values,
    "into what is given": lambda x: (
        torch.add(x.detach(), 1, out=torch.empty(0, device=x.device)) * x
    ),
    "rows by number": lambda x: (
        x[torch.tensor([0, 2, 2], device=x.device)]
        * x.index_select(0, torch.tensor([1, 1, 3], device=x.device))
    ),
    "2 and 2.0": lambda x: x * (x.detach().long().pow(2).sum() + x.detach().long().pow(2.0).sum()),
    "a convolution": lambda x: nn.functional.conv1d(x[None], x.new_ones(3, 4, 2)),
    "norms in half": lambda x: nn.functional.layer_norm(x.half(), (8,), x.new_ones(8).half()),
    "norm of squares": lambda x: nn.functional.rms_norm(x, (8,), x.new_ones(8)),
    "batch norm": lambda x: nn.functional.batch_norm(x, None, None, training=True),
    "fused attention": lambda x: scaled_dot_product_attention(
        *[x.view(1, 1, 8, 4)] * 3, is_causal=True
    ),
    "fused attention, of a mask": lambda x: scaled_dot_product_attention(
        *[x.view(1, 1, 8, 4)] * 3, x.new_ones(8, 8).bool()
    ),
    "attention that cannot be fused": lambda x: scaled_dot_product_attention(
        *[x.view(1, 1, 8, 4)] * 3, dropout_p=0.1
    ),
    "torch's own transformer": lambda x: nn.TransformerEncoderLayer(
        4, 2, 8, 0.0, batch_first=True, device=x.device
    )(x.reshape(1, 8, 4)),
}


@pytest.mark.parametrize("odd", ODD)
def test_any_program_holds_what_its_dry_run_says(odd):
    def program(rank):
        w = nn.Parameter(torch.ones(4, 8, device=rank.device))
        rank.watch(
            lambda: {
                "weights": {"w": w},
                "gradients": {"w gradient": w.grad} if w.grad is not None else {},
            }
        )
        for step in range(2):
            with rank.span(f"F{step}"):
                y = ODD[odd](w * 2)
            with rank.span(f"B{step}"):
                y.float().sum().backward()

    found, expected = dry_run(program).actions, really(program)
    for name in expected:
        assert found[name]._replace(**UNSEEN) == expected[name]._replace(**UNSEEN), name


# The value, and the rank


def program(rank):
    """A loop that reads numbers from tensors, and takes a plain path."""
    model = nn.Linear(8, 8, device=rank.device)
    x = torch.ones(4, 8).to(rank.device)
    rank.watch(lambda: owned.of([model]) | {"inputs": [x]})
    with rank.span("F"):
        y = model(x)
        assert (
            y.sum().item() == 1.0 and not bool(y.isnan().any()) and y.argmax(-1).tolist() == [0] * 4
        )
    with rank.aside(), torch.no_grad():
        assert float((model(x) - 1).norm()) == 1.0
    rank.log("loss", y.mean())
    with rank.span("B"):
        y.sum().backward()


def test_numbers_that_are_read_take_the_plain_path_and_what_is_aside_counts_nothing():
    run = dry_run(program)
    assert run.start == {"weights": 8 * 9 * 4}
    assert (
        run.actions["F"].work.flops == 2 * 4 * 8 * 8
        and run.actions["B"].work.flops == 2 * 4 * 8 * 8
    )
    assert run.actions["F"].after == run.start | {"temporaries": 4 * 8 * 4}
    assert run.actions["B"].after["gradients"] == 8 * 9 * 4
    assert run.actions["B"].work.operators == 4  # a sum, its gradient, dL/dw, dL/db: views are none


def test_a_model_is_on_meta_even_where_torch_makes_nothing_there_before():
    """Its constructors that a device context sees are those of the first call in one: torch.tensor
    is among them, which the ledger replaces, and batch norm's counter is made by it."""
    _device_constructors.cache_clear()
    seen = []
    dry_run(
        lambda rank: seen.extend(built(lambda: nn.BatchNorm1d(4), torch.device("meta")).buffers())
    )
    assert [buffer.is_meta for buffer in seen] == [True] * 3


def test_the_compiler_is_not_imported_for_what_is_hidden_from_it(monkeypatch):
    monkeypatch.delattr(torch, "_dynamo")  # which imports it, so that it has been
    monkeypatch.delitem(sys.modules, "torch._dynamo")

    def plain(x):
        return x + 1

    with compiler_asleep():
        assert (
            torch._disable_dynamo(plain)(1) == 2 and len(sys.modules["torch._dynamo"].__dict__) < 10
        )
    assert "torch._dynamo" not in sys.modules and not vars(plain)


def test_what_is_written_into_a_given_tensor_counts_as_what_is_new():
    def program(rank):
        x, out = (torch.ones(64, 8, device=rank.device) for _ in range(2))
        with rank.span("new"):
            x.div(2)
        with rank.span("given"):
            torch.div(x, 2, out=out)

    actions = dry_run(program).actions
    assert actions["given"].work == actions["new"].work == Work(0, 2 * 64 * 8 * 4, 1)


@pytest.mark.parametrize(
    "rule, numbers, counts",
    [
        (partial(torch.optim.SGD, fused=True), 3, 0),
        (partial(torch.optim.SGD, momentum=0.9, fused=True), 5, 0),
        (partial(torch.optim.Adagrad, fused=True), 5, 4),  # its schema says it writes the count
        (partial(torch.optim.AdamW, fused=True), 7, 3),
    ],
)
def test_a_fused_update_reads_and_writes_each_tensor_once(rule, numbers, counts):
    """`numbers` of a weight; of a tensor its count of steps is raised, and read."""

    def program(rank):
        weights = [torch.empty(n, device=rank.device, requires_grad=True) for n in (8, 24)]
        optimizer = rule(weights)
        for step in "01":
            for weight in weights:
                weight.grad = torch.empty_like(weight)
            with rank.span(step):
                optimizer.step()

    work, launched = dry_run(program).actions["1"].work, 1 + bool(counts)
    assert work == Work(0, 4 * (numbers * 32 + counts * 2), 2 * launched)
    assert work.on_gpu(tensors=2) == Work(0, work.moved_bytes, launched)


@pytest.mark.parametrize("norm", [nn.functional.rms_norm, torch.rms_norm])
def test_a_norm_is_one_kernel_each_way_on_a_gpu(norm):
    """It reads x and w, and writes y and a number a row; the backward reads dL/dy too."""

    def program(rank):
        x, w = (torch.empty(n, device=rank.device, requires_grad=True) for n in ((6, 16), (16,)))
        with rank.span("F"):
            y = norm(x, (16,), w)
        with rank.span("B"):
            torch.autograd.grad(y, (x, w), torch.empty_like(y))

    forward, backward = (acted.work for acted in dry_run(program).actions.values())
    x, w, rows = 4 * 6 * 16, 4 * 16, 4 * 6
    assert [forward.on_gpu(), backward.on_gpu()] == [
        Work(0, 2 * x + w + rows, 1),
        Work(0, 3 * x + 2 * w + rows, 1),
    ]
    gpu = Hardware.named("a100-nvlink")
    assert forward.seconds(gpu, "float32") == gpu.launch_s and (
        forward.seconds(replace(gpu, launches_ahead=False), "float32") > 6 * gpu.launch_s
    )


def test_inference_mode_computes_what_no_grad_does():
    """torch hands over a linear layer whole there."""

    def program(rank, mode):
        model = nn.TransformerEncoderLayer(8, 2, device=rank.device)
        with rank.span("F"), mode():
            model(torch.empty(3, 2, 8, device=rank.device))

    modes = torch.no_grad, torch.inference_mode
    one, other = (dry_run(partial(program, mode=mode)).actions["F"] for mode in modes)
    assert (one.work, one.inside) == (other.work, other.inside) and one.work.flops


def test_a_dry_run_says_the_same_again_and_leaves_nothing_to_the_collector():
    weights = []

    def training(rank):
        model = nn.Linear(8, 8, device=rank.device)
        weights.append(weakref.ref(model.weight))
        rank.watch(lambda: owned.of([model]))
        with rank.span("B"):
            model(torch.ones(4, 8, device=rank.device)).sum().backward()

    gc.disable()
    try:
        assert dry_run(training) == dry_run(training) and [weight() for weight in weights] == [
            None,
            None,
        ]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: peak_bytes((6,), 3), "give at least two"),
        (lambda: peak_bytes((6, 0), 3), "a width=0"),
        (lambda: peak_bytes((6, 5), 0), "batch=0"),
        (lambda: peak_bytes((6, 5), 3, "no-such-rule"), "choose one of sgd, momentum, adam"),
        (lambda: peak_bytes((6, 5), 3, "adam", torch.int64), "holds no fractions"),
        (lambda: peak_bytes((6, 5), 3, steps=0), "steps=0"),
        (lambda: saved_bytes(SMALL, -1, 3, 1), "0 <= first"),
        (lambda: parameters(SMALL, 0, 6), "last <= 5"),
        (lambda: saved_bytes(SMALL, 0, 3, 0), "batch=0.*take 1 or more"),
    ],
)
def test_impossible(call, sentence):
    with pytest.raises(Impossible, match=sentence):
        call()
