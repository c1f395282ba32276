"""The ledger: peaks equal to hand counts, every way to allocate seen once, kinds by rule, ends at
once, a limit at the operator."""

import copy
import gc
import pickle
import random
import threading
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import GPT, GPTConfig, cross_entropy
from bigtrain_lab.runtime import Ledger
from bigtrain_lab.runtime.memory.capacity import OutOfMemory
from bigtrain_lab.runtime.memory.owned import held
from bigtrain_lab.techniques.checkpoint import checkpoint, checkpoint_sequential
from bigtrain_lab.techniques.mixed_precision import LEVELS, MixedPrecision

F32 = 4


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.Tanh(), nn.Linear(h, o))


def train(model, optimizer, loss_fn, x, y, steps=2):
    for _ in range(steps):
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def watched(model, loss_fn, x, y):
    optimizer = torch.optim.Adam(model.parameters())
    with Ledger(model, optimizer) as ledger:
        train(model, optimizer, loss_fn, x, y)
    return ledger


def sums(alive):
    return {kind: sum(a.bytes for a in alive if a.kind == kind) for kind in {a.kind for a in alive}}


# -- hand counts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "where"), [(8, "update"), (512, "backward")])
def test_the_peak_of_an_mlp_is_the_hand_count(batch, where):
    I, H, O = 16, 32, 4
    ledger = watched(
        mlp(I, H, O), nn.functional.mse_loss, torch.randn(batch, I), torch.randn(batch, O)
    )
    weights = F32 * (I * H + H + H * O + O)
    adam = (
        2 * weights + 4 * F32
    )  # two moments a weight, and a step number for each of the four parameters
    loss = (
        F32 * batch * O
    )  # a scalar in a storage as large as the differences: the kernel squares them there, then sums
    expected = {
        # the denominator of Adam, sqrt(v) and sqrt(v) / sqrt(1 - beta2^t), for the largest matrix
        "update": {
            "weights": weights,
            "optimizer": adam,
            "gradients": weights,
            "temporaries": 2 * F32 * I * H + loss,
        },
        # behind the second layer: tanh's output is saved, its gradient came in, the gradient of its
        # input goes out; and the 1 that the backward began with
        "backward": {
            "weights": weights,
            "optimizer": adam,
            "gradients": F32 * (H * O + O),
            "activations": F32 * batch * H,
            "temporaries": 2 * F32 * batch * H + loss + F32,
        },
    }[where]
    assert (sums(ledger.at_peak()), ledger.peak_bytes) == (expected, sum(expected.values()))


@pytest.mark.parametrize(("vocabulary", "where"), [(32, "loss"), (11, "mlp")])
def test_the_peak_of_the_transformer_is_the_hand_count(vocabulary, where):
    L, D, H, S, V, B = 2, 16, 2, 16, vocabulary, 4
    model = GPT(GPTConfig(layers=L, width=D, heads=H, sequence=S, vocabulary=V))
    ledger = watched(model, cross_entropy, torch.randint(V, (B, S)), torch.randint(V, (B, S)))
    weights = F32 * (12 * L * D * D + 13 * L * D + (2 * V + S + 2) * D)
    adam = 2 * weights + F32 * (
        12 * L + 5
    )  # a step number for each of 12 tensors a block, two tables, a norm and the head
    # A block saves: the input of each norm and its output (4 BSD), mean and 1/std of each norm (4
    # BS), q, k, v (3 BSD), the probabilities (B H S S), what the output projection gets (BSD), what
    # GELU gets and gives (2 x 4 BSD).
    block = 16 * B * S * D + 4 * B * S + B * H * S * S
    head = 2 * B * S * D + 2 * B * S  # of its norm
    assert ledger.peak("activations") == F32 * (L * block + head + B * S * V)
    expected = {
        # the gradient of the logits is made from zeros (B S V) by scattering (B S V) one number a
        # token (B S); and the loss and the 1 that the backward began with
        "loss": {
            "weights": weights,
            "optimizer": adam,
            "activations": F32 * (L * block + head + B * S * V),
            "temporaries": F32 * (2 * B * S * V + B * S + 2),
        },
        # in the last block's MLP: the gradient came in (BSD) and the one of GELU's output is made
        # (4 BSD); gradients of the head, its norm, and the projection back to D
        "mlp": {
            "weights": weights,
            "optimizer": adam,
            "activations": F32 * L * block,
            "gradients": F32 * (V * D + 2 * D + 4 * D * D + D),
            "temporaries": F32 * (5 * B * S * D + 2),
        },
    }[where]
    assert (sums(ledger.at_peak()), ledger.peak_bytes) == (expected, sum(expected.values()))


# -- nothing twice, nothing missed -----------------------------------------------------------------


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())  # a tensor that nothing but the graph holds
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Wrapped(torch.Tensor):
    """A tensor made of another one, as DTensor is."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {})))


OUTSIDE, LAYER = torch.zeros(100), nn.Linear(10, 10)


def emptied():
    a = torch.zeros(100)
    a.untyped_storage().resize_(0)
    return a


def data_swapped():
    a = torch.zeros(100)
    a.data = torch.zeros(11)
    return a


def nested(layout):
    return torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(5, 4)], layout=layout)


def kept_by_hooks():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        return torch.zeros(100, requires_grad=True).exp()


def by_optimizer(**how):
    w = torch.zeros(100, requires_grad=True)
    w.grad = torch.ones(100)
    optimizer = torch.optim.Adam([w], **how)
    optimizer.step()
    return optimizer


WAYS = [
    (
        lambda: [
            torch.zeros(100),
            torch.ones(3),
            torch.full((2, 2), 1),
            torch.arange(10),
            torch.randn(5),
            torch.eye(3),
        ],
        400 + 12 + 32 + 80 + 20 + 36,
    ),
    (
        lambda: [
            torch.tensor([1.0, 2.0]),
            torch.as_tensor([1, 2]),
            torch.zeros_like(OUTSIDE),
            OUTSIDE.new_empty(9),
        ],
        8 + 16 + 400 + 36,
    ),
    (lambda: torch.from_numpy(np.zeros(6)), 48),
    (lambda: torch.empty(0), 0),
    (lambda: torch.empty(100, device="meta"), 0),
    (lambda: torch.add(torch.zeros(100), 1, out=torch.empty(0)), 400),
    (lambda: torch.add(OUTSIDE, 1, out=OUTSIDE), 0),
    (
        lambda: torch.sort(
            torch.zeros(10), out=(torch.empty(0), torch.empty(0, dtype=torch.int64))
        ),
        40 + 80,
    ),
    (
        lambda: [
            a := torch.zeros(10, 10),
            a.view(100),
            a.t(),
            a[::2],
            a.expand(5, 10, 10),
            a.detach(),
            a.unbind(),
            a.chunk(2),
            a.as_strided((3,), (1,)),
            a.data,
            a.numpy(),
        ],
        400,
    ),
    (lambda: [OUTSIDE.view(10, 10), OUTSIDE.add_(0), OUTSIDE.detach(), OUTSIDE.data], 0),
    (lambda: torch.zeros(100).resize_(250), 1000),
    (emptied, 0),
    (lambda: [torch.zeros(100).set_(b := torch.zeros(7)), b], 28),
    (data_swapped, 44),
    (lambda: OUTSIDE.clone(), 400),
    (lambda: OUTSIDE.view(10, 10).t().contiguous(), 400),
    (lambda: OUTSIDE.to(torch.float64), 800),
    (lambda: OUTSIDE.contiguous(), 0),
    (lambda: OUTSIDE.view(10, 10).t().reshape(100), 400),
    (lambda: torch.stack([OUTSIDE, OUTSIDE]), 800),
    (lambda: copy.deepcopy([torch.zeros(100)]), 400),
    (lambda: copy.deepcopy(OUTSIDE), 400),
    (lambda: copy.deepcopy(LAYER), 440),
    (lambda: pickle.loads(pickle.dumps(OUTSIDE)), 400),
    (lambda: torch.empty(0).set_(OUTSIDE.untyped_storage().clone()), 400),
    (lambda: torch._foreach_add([OUTSIDE, OUTSIDE[:10]], 1), 440),
    (lambda: OUTSIDE.topk(5), 5 * 4 + 5 * 8),
    (lambda: nn.functional.layer_norm(OUTSIDE.view(10, 10), (10,)), 400),
    # each exp is saved, one by the graph alone; x by nothing, but the graph leads to it
    (lambda: torch.zeros(100, requires_grad=True).exp().exp(), 3 * 400),
    (lambda: Doubled.apply(torch.zeros(100, requires_grad=True)), 400 + 400 + 400),
    (
        lambda: torch.utils.checkpoint.checkpoint(
            lambda x: x.exp().exp().exp(), torch.zeros(100, requires_grad=True), use_reentrant=False
        ),
        400 + 400,
    ),
    (kept_by_hooks, 400 + 400 + 800),
    (by_optimizer, 400 + 400 + 800 + 4),
    (lambda: by_optimizer(foreach=True), 1604),
    (lambda: by_optimizer(fused=True), 1604),
    (lambda: by_optimizer(amsgrad=True), 2004),
    (
        lambda: torch.sparse_coo_tensor(
            torch.tensor([[1, 5]]), torch.zeros(2), (10,), check_invariants=True
        ),
        16 + 8,
    ),
    (lambda: nn.Linear(10, 10), 440),
    (
        lambda: nested(torch.strided),
        4 * 32 + 8 * (2 * 4 + 2),
    ),  # two sizes, two strides and an offset each
    (lambda: nested(torch.strided) * 2, 4 * 32 + 8 * (2 * 4 + 2)),
    (lambda: nested(torch.jagged), 4 * 32 + 8 * 3),
    (lambda: Wrapped(torch.zeros(100)) + 1, 400),
    (lambda: [Wrapped(torch.zeros(100)).view(10, 10)], 400),
    (lambda: torch.func.grad(lambda x: (x**2).sum())(OUTSIDE), 400),
    (lambda: torch.func.vmap(torch.func.grad(lambda x: (x * x).sum()))(OUTSIDE.view(10, 10)), 400),
    (
        lambda: torch.func.functional_call(
            nn.Linear(10, 1),
            {"weight": torch.zeros(1, 10), "bias": torch.zeros(1)},
            OUTSIDE.view(10, 10),
        ),
        40,
    ),
    (lambda: nn.functional.conv2d(torch.zeros(1, 2, 8, 8), torch.zeros(3, 2, 3, 3)), 3 * 6 * 6 * 4),
    (lambda: nn.LSTM(4, 5)(torch.zeros(7, 1, 4))[0].detach(), 7 * 5 * 4),
]


@pytest.mark.parametrize(
    ("way", "expected"), WAYS, ids=lambda v: getattr(v, "__name__", None) if callable(v) else None
)
def test_each_way_to_allocate_counts_once(way, expected):
    before = OUTSIDE.clone()
    with Ledger() as ledger:
        kept = way()
        assert ledger.bytes == expected
        del kept
        assert ledger.bytes == 0, "what is gone has left at once"
    OUTSIDE.copy_(before)


def test_a_tensor_made_of_another_is_saved_as_what_it_is():
    """A handle that took torch's dense detach would give the backward a tensor without storage."""
    x = Wrapped(torch.full((3,), 2.0)).requires_grad_()
    with Ledger(device=torch.device("cpu")):
        (x * x).backward(Wrapped(torch.ones(3)))
    assert x.grad.inner.tolist() == [4, 4, 4]


# -- kinds -----------------------------------------------------------------------------------------


def test_a_temporary_becomes_an_activation_and_a_temporary_again():
    x = torch.ones(100, requires_grad=True)
    with Ledger() as ledger:
        y = x.exp()  # saves its own output
        assert (ledger.now("activations"), ledger.now("temporaries")) == (400, 0)
        z = y.sum()
        z.backward()
        assert (
            ledger.now("activations") == 0 and ledger.now("temporaries") == 400 + 4 + 400
        )  # y, z and the gradient, which nobody declared
        del y, z
        assert ledger.bytes == 400
    assert ledger.now("inputs") == 0  # the backward of exp saves its output, and x never


def test_what_was_there_before_and_is_saved_is_an_input():
    x, w = torch.ones(8, 16), torch.ones(16, 4, requires_grad=True)
    with Ledger() as ledger:
        y = x @ w
        assert (
            ledger.now("inputs") == 8 * 16 * 4
            and ledger.bytes == ledger.now("temporaries") == 8 * 4 * 4
        )
        assert "inputs 512 B" in ledger.table()
    assert y is not None


def test_an_optimizer_s_state_counts_whatever_holds_it():
    weight = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.SGD([weight], 0.1)
    with Ledger(optimizer) as ledger:
        optimizer.state[weight] = {"steps": [torch.zeros(10)], "mine": {"deep": (torch.zeros(90),)}}
        assert ledger.now("optimizer") == F32 * 100


def test_a_lazy_module_s_weights_count_from_when_they_have_a_shape():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    with Ledger(model) as ledger:
        assert ledger.bytes == 0
        for _ in range(2):
            model(torch.ones(2, 5)).sum().backward()
            assert ledger.now("weights") == ledger.now("gradients") == F32 * (3 * 5 + 3 + 3 + 3)
            assert ledger.now("buffers") == F32 * (3 + 3) + 8
            model.zero_grad()


def test_gradients_without_an_optimizer_are_recognised_as_they_come():
    model = mlp(16, 32, 4)
    with Ledger(model) as ledger:
        for _ in range(2):
            model(torch.ones(8, 16)).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None  # gone before anybody asks
    assert ledger.peak("gradients") == sum(p.numel() * 4 for p in model.parameters())
    assert ledger.bytes == ledger.now("weights")


def test_tied_weights_and_two_modules_count_once_each():
    shared = nn.Linear(10, 10, bias=False)
    one, two = (
        nn.Sequential(shared, nn.Linear(10, 2, bias=False)),
        nn.Sequential(shared, nn.Linear(10, 3, bias=False)),
    )
    with Ledger(one, two) as ledger:
        assert ledger.now("weights") == 4 * (100 + 20 + 30)


# -- where -----------------------------------------------------------------------------------------


def test_each_storage_says_what_made_it_and_where_in_the_backward_too():
    model = GPT(GPTConfig(layers=2, width=16, heads=2, sequence=16, vocabulary=11))
    ledger = watched(model, cross_entropy, torch.randint(11, (4, 16)), torch.randint(11, (4, 16)))
    assert {(a.kind, a.name, a.module, a.made) for a in ledger.at_peak()} >= {
        ("activations", "gelu", "layers.1.mlp", "forward"),
        ("activations", "_softmax", "layers.2.attention", "forward"),
        ("temporaries", "mm", "layers.2.mlp.down", "backward"),
        ("gradients", "layers.3.norm.weight gradient", "layers.3.norm", "backward"),
        ("weights", "layers.1.mlp.up.weight", "", ""),
    }
    assert f"{ledger.peak_bytes / 1000:.4g} kB at the peak" in ledger.table()


def test_a_part_that_is_called_by_itself_has_its_path_in_the_model():
    model = nn.Sequential(nn.Linear(10, 10), nn.Tanh())
    with Ledger(model) as ledger:
        kept = model[1](torch.zeros(1000))
        assert [a.module for a in ledger.at_peak() if a.name == "tanh"] == ["1"]
    assert kept is not None


# -- ends, threads, limits -------------------------------------------------------------------------


def test_cycles_and_other_threads_give_back_what_they_held():
    with Ledger() as ledger:
        for _ in range(300):
            cycle = [torch.zeros(10)]
            cycle.append(cycle)  # only the collector, at any moment, ends these
        held = [torch.zeros(10) for _ in range(100)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        del cycle
        gc.collect()
        assert ledger.bytes == 0 and ledger.peak_bytes >= 4000


def test_nothing_is_left_behind():
    hooks, resize = torch.autograd.graph.disable_saved_tensors_hooks, torch.UntypedStorage.resize_
    model = mlp(4, 4, 4)
    with pytest.raises(ZeroDivisionError), Ledger(model):
        1 / 0  # noqa: B018
    assert (
        torch.autograd.graph.disable_saved_tensors_hooks is hooks
        and torch.UntypedStorage.resize_ is resize
    )
    assert (
        not nn.modules.module._global_forward_pre_hooks
        and not nn.modules.module._global_forward_hooks
    )
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_what_was_refused_does_not_count_and_the_program_may_go_on():
    with Ledger(capacity_bytes=1000) as ledger:
        kept, grows = torch.zeros(50), torch.zeros(10)
        for refused in (
            lambda: torch.zeros(1000),
            lambda: grows.resize_(1000),  # noqa: F821
            lambda: grows.untyped_storage().resize_(4000),  # noqa: F821
        ):
            with pytest.raises(OutOfMemory, match=r"asks for [34].* more than the 240 B held"):
                refused()
            assert sums(ledger.refused)["temporaries"] > 1000
            assert (
                ledger.bytes == ledger.peak_bytes == 240 == sum(a.bytes for a in ledger.at_peak())
            )
            grows = None  # gone, before the next one is made
            grows = torch.zeros(10)
            assert ledger.refused == []
        del grows
        more = torch.zeros(200)
        assert ledger.bytes == ledger.peak_bytes == 1000
    assert kept is not more


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: Ledger("model"), "cannot watch str: give it modules and optimizers"),
        (lambda: [*held({"weight": []})], "Cannot watch weight: name the kinds of memory"),
        (lambda: Ledger().peak("wieghts"), "no kind of memory 'wieghts': choose from weights"),
        (lambda: Ledger(capacity_bytes="2GB"), "capacity_bytes is '2GB': give the bytes"),
        (lambda: Ledger(capacity_bytes=float("nan")), "capacity_bytes is nan: give the bytes"),
        (lambda: Ledger(capacity_bytes=torch.ones(1)), "give the bytes"),
        (lambda: Ledger(capacity_bytes=-5), "capacity_bytes is -5"),
        (lambda: Ledger(LAYER, capacity_bytes=200).__enter__(), "it holds 440 B .weights 440 B."),
    ],
)
def test_what_cannot_be_is_a_sentence(wrong, sentence):
    with pytest.raises(Impossible, match=sentence):
        wrong()


def test_ledgers_inside_one_another_see_alike():
    """Autograd asks the innermost hooks alone; torch.func wants none of them, and finds them again
    as they were."""
    model, ledgers = mlp(16, 32, 4), [Ledger(), Ledger(), Ledger()]
    with ExitStack() as stack:
        for ledger in ledgers:
            stack.enter_context(ledger)
            with pytest.raises(Impossible, match="active already"):
                ledger.__enter__()
        torch.func.grad(lambda w: (w**3).sum())(torch.ones(10))
        for _ in range(2):
            model(torch.ones(256, 16)).square().sum().backward()
    seen = [(each.peak_bytes, each.peak("activations"), sums(each.at_peak())) for each in ledgers]
    assert seen == [seen[0]] * 3
    assert seen[0][1] == F32 * 256 * (16 + 32 + 4)  # torch.func keeps nothing
    assert [(each.now("activations"), each.peak("recomputed")) for each in ledgers] == [(0, 0)] * 3


@pytest.mark.parametrize("coarse_inside", [True, False])
def test_a_coarse_ledger_and_another_inside_one_another_see_alike(coarse_inside):
    x, w = torch.ones(8, 16), torch.ones(16, 32, requires_grad=True)
    coarse, ledger = Ledger(coarse=True), Ledger()
    coarse.holdings = lambda: {"weights": [w], "inputs": [x]}
    around, inside = (ledger, coarse) if coarse_inside else (coarse, ledger)
    with around, inside:
        y = (x @ w).exp()
    assert coarse.now("activations") == ledger.now("activations") == F32 * 8 * 32
    y.sum().backward()
    assert coarse.now("activations") == ledger.now("activations") == coarse.now("temporaries") == 0
    assert coarse.bytes == F32 * 16 * 32, "inputs are in no sum, and so is what is let go"


# -- the balance -----------------------------------------------------------------------------------


def test_the_peak_and_who_was_alive_are_those_of_a_full_record():
    """Random lives of temporaries, of which some are declared later: what was alive at the peak is
    mostly gone at the end, or of another kind."""
    draw, free, kept, peak, then = random.Random(0), [], [], 0, []
    ledger = Ledger()
    ledger.holdings = lambda: {"stashed": kept}
    with ledger:
        for moment in range(600):
            some = draw.choice([free, kept])
            if some and draw.random() < 0.4 + 0.2 * (moment > 300):
                del some[draw.randrange(len(some))]
            elif free and draw.random() < 0.3:
                kept.append(free.pop())
            else:
                free.append(torch.zeros(draw.randrange(1, 9)))
            held = [
                *((t.nbytes, "temporaries") for t in free),
                *((t.nbytes, "stashed") for t in kept),
            ]
            total = sum(size for size, _ in held)
            if total > peak:
                peak, then = total, held
            assert (ledger.bytes, ledger.peak_bytes) == (total, peak)
        assert sorted((a.bytes, a.kind) for a in ledger.at_peak()) == sorted(then)


def test_what_is_done_aside_is_not_seen_and_what_ends_there_is():
    model = torch.nn.Linear(10, 10, bias=False)
    x, held = torch.ones(2, 10), []
    with Ledger(model) as ledger:
        y = model(x)
        held.append(torch.ones(1000))
        before = ledger.bytes
        with ledger.aside():  # saved, made by a backward, kept: none is seen
            looked = torch.autograd.grad(model(x).square().sum(), model.weight)
            held.clear()
        assert ledger.bytes == before - 4000
        y.sum().backward()
        assert ledger.now("gradients") == 400 and ledger.peak_bytes < before + 1000
    assert looked[0].shape == (10, 10)


@pytest.mark.parametrize("level", LEVELS)
def test_mixed_precision_under_a_ledger(level):
    """Gradients leave the half weights for their masters while the ledger looks on."""
    mp = MixedPrecision(level)
    model = mp.prepare(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(mp.parameters(), 0.1, momentum=0.9)
    with Ledger(model, optimizer) as ledger:
        for _ in range(2):
            with mp:
                loss = (
                    model(
                        torch.ones(
                            3,
                            4,
                            dtype=torch.float32 if LEVELS[level].policy else LEVELS[level].dtype,
                        )
                    )
                    .float()
                    .sum()
                    / 100
                )  # times 65,536 it is an fp16 number
            mp.backward(loss)
            mp.step(optimizer)
    weights, (_, _, _, masters, _, rounded) = 4 * 8 + 8 + 8 * 2 + 2, LEVELS[level]
    stored = LEVELS[level].dtype.itemsize if rounded else 4
    assert ledger.now("weights") == stored * weights
    assert ledger.now("master") == 4 * weights * masters
    trained = 4 if masters else stored
    assert ledger.now("gradients") == ledger.now("optimizer") == trained * weights


# -- a recompute that ends early -------------------------------------------------------------------


@pytest.mark.parametrize(
    "again",
    [
        lambda model, x: checkpoint_sequential(model, "sqrt", x),
        checkpoint,
        partial(torch.utils.checkpoint.checkpoint, use_reentrant=False),
    ],
)
def test_a_rerun_that_ends_within_a_module_leaves_no_path_behind(again):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters())
    with Ledger(model, optimizer) as ledger:
        train(
            lambda x: again(model, x),
            optimizer,
            nn.functional.mse_loss,
            torch.randn(4, 8, requires_grad=True),
            torch.randn(4, 8),
        )
        kept = torch.ones(1000)
        alive = ledger.at_peak()
    assert [a.module for a in alive if a.bytes == kept.nbytes] == [""]
    assert {a.module for a in alive if a.kind == "optimizer"} == {""}
