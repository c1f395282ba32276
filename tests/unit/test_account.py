"""The accounts of weights, flops, saved and moved bytes: the closed forms, then what torch itself counts."""

from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import (GPT, GPTConfig, GPTStage, boundary_bytes, cross_entropy, matmul_flops, matmuls,
                                 moved_bytes, parameter_bytes, parameter_shapes, parameters, saved_bytes)
from tests.unit.sizes import DROPPED, NOISE, SMALL


def inputs_of(config, first, batch):
    draw = torch.Generator().manual_seed(0)
    if first == 0:
        return torch.randint(config.vocabulary, (batch, config.sequence), generator=draw)
    shape = batch, config.sequence, config.width
    return torch.randn(shape, dtype=config.dtype, generator=draw).requires_grad_()


def targets_of(config, batch):
    return torch.randint(config.vocabulary, (batch, config.sequence), generator=torch.Generator().manual_seed(1))


def step(stage, x, targets, noise=NOISE):
    """The forward a pipeline does: the stage, and the loss on the last one, divided by the micro-batches."""
    y = stage(x, noise)
    return cross_entropy(y, targets) / 3.0 if stage.last == stage.config.pieces else y


# Closed forms: weights

@pytest.mark.parametrize("tied", [False, True])
def test_the_whole_has_the_closed_form_of_weights(tied):
    config = GPTConfig(layers=5, width=24, heads=4, sequence=17, vocabulary=31, tied=tied)
    L, D, S, V = 5, 24, 17, 31
    expected = 12 * L * D * D + 13 * L * D + (V * (1 if tied else 2) + S + 2) * D
    assert parameters(config, 0, config.pieces) == expected
    assert sum(p.numel() for p in GPT(config).parameters()) == expected


@pytest.mark.parametrize("tied, first, last", [(False, 0, 2), (False, 1, 3), (False, 2, 5), (False, 0, 5), (True, 0, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_named_shapes_and_bytes_are_those_of_the_module(tied, first, last, dtype):
    config = replace(SMALL, tied=tied, dtype=dtype)
    weights = dict(GPTStage(config, first, last).named_parameters())
    assert parameter_shapes(config, first, last) == {name: tuple(w.shape) for name, w in weights.items()}
    assert parameter_bytes(config, first, last) == sum(w.nbytes for w in weights.values())


# Closed forms: flops

def test_block_flops_are_24BSDD_plus_4BSSD():
    config, B = GPTConfig(layers=2, width=48, heads=6, sequence=20), 5
    S, D = 20, 48
    forward = 24 * B * S * D * D + 4 * B * S * S * D
    assert matmul_flops(config, 1, 2, B) == (forward, 2 * forward)
    assert matmul_flops(config, 3, 4, B)[0] == 2 * B * S * D * 256
    assert matmul_flops(config, 0, 1, B) == (0, 0)
    assert [row.name for row in matmuls(config, 2, 4, B)][-1] == "layers.3.logits"


SLICES = [(0, 1), (0, 2), (1, 2), (2, 4), (4, 5), (3, 5), (0, 5)]


@pytest.mark.parametrize("first, last", SLICES)
@pytest.mark.parametrize("batch", [1, 4])
def test_flops_equal_torchs_counter(first, last, batch):
    for config in (SMALL, DROPPED, replace(SMALL, heads=1, sequence=1)):
        stage, x, targets = GPTStage(config, first, last), inputs_of(config, first, batch), targets_of(config, batch)
        with FlopCounterMode(display=False) as forward:
            y = step(stage, x, targets)
        with FlopCounterMode(display=False) as backward:
            y.sum().backward()
        assert matmul_flops(config, first, last, batch) == (forward.get_total_flops(), backward.get_total_flops())


# Closed forms: bytes saved

def packed_bytes(stage, x, targets, noise=NOISE):
    """Bytes of each distinct storage that autograd packs, less the weights and what the stage was given; sorted."""
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = step(stage, x, targets, noise)
    for known in (x, targets, *stage.parameters(), *stage.buffers()):
        storages.pop(known.untyped_storage().data_ptr(), None)
    assert y.requires_grad      # and alive until here: a freed storage's address could be used again
    return sorted(storage.nbytes() for storage in storages.values())


SIZES = [dict(), dict(sequence=1), dict(heads=1), dict(width=32, heads=8, sequence=33, vocabulary=256),
         dict(layers=1, width=6, heads=2)]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("batch", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_saved_bytes_are_exact(size, batch, dropout, dtype):
    config = replace(SMALL, **size, dropout=dropout, dtype=dtype)
    for first in range(config.pieces):
        for last in range(first + 1, config.pieces + 1):
            stage = GPTStage(config, first, last)
            measured = packed_bytes(stage, inputs_of(config, first, batch), targets_of(config, batch))
            assert sorted(row.bytes for row in saved_bytes(config, first, last, batch)) == measured, (first, last)


def test_saved_bytes_of_a_block_have_the_closed_form():
    config, B = GPTConfig(layers=3, width=48, heads=6, sequence=20), 5
    S, D, H, z = 20, 48, 6, 4
    second_block = saved_bytes(config, 1, 3, B)[-len(saved_bytes(config, 1, 2, B)) - 1:]
    assert second_block[0].name == "layers.2.attention_norm.input"
    assert sum(row.bytes for row in second_block) == (16 * B * S * D + 4 * B * S + B * H * S * S) * z
    more = sum(row.bytes for row in saved_bytes(replace(config, dropout=0.1), 1, 2, B))
    assert more - sum(row.bytes for row in saved_bytes(config, 1, 2, B)) == B * H * S * S * (z + 1) + 2 * B * S * D


def test_a_stages_input_is_not_its_own():
    names = [row.name for row in saved_bytes(SMALL, 2, 4, 1)]
    assert "layers.2.attention_norm.input" not in names and "layers.3.attention_norm.input" in names
    assert len(names) == len(set(names))


def test_without_the_loss_its_log_probabilities_are_not_saved():
    loss, = set(saved_bytes(SMALL, 3, 5, 2)) - set(saved_bytes(SMALL, 3, 5, 2, loss=False))
    assert loss == ("layers.4.log_probabilities", 2 * 7 * 11 * 4)


def test_without_noise_or_in_eval_dropout_saves_nothing():
    stage, x, targets = GPT(DROPPED), inputs_of(DROPPED, 0, 2), targets_of(DROPPED, 2)
    expected = sorted(row.bytes for row in saved_bytes(SMALL, 0, SMALL.pieces, 2))
    assert packed_bytes(stage, x, targets, noise=None) == expected
    assert packed_bytes(stage.eval(), x, targets) == expected


def test_targets_that_are_a_view_are_not_copied():
    window = targets_of(replace(SMALL, sequence=8), 2)
    assert packed_bytes(GPT(SMALL), window[:, :-1], window[:, 1:]) == packed_bytes(
        GPT(SMALL), window[:, :-1].contiguous(), window[:, 1:].contiguous())


def test_boundary_bytes_are_those_of_the_message():
    hidden = GPTStage(DROPPED, 0, 2)(inputs_of(DROPPED, 0, 4), NOISE)
    assert boundary_bytes(DROPPED, 4) == hidden.nbytes == 4 * 7 * 12 * 4


# Bytes moved: an estimate, held to what torch's operators read and write

class OperatorBytes(TorchDispatchMode):
    """Inputs read once and outputs written once, for every operator that is neither a matmul nor a view."""

    FREE = ("mm", "bmm", "addmm", "view", "t", "transpose", "permute", "expand", "_unsafe_view", "select", "slice",
            "unbind", "detach", "empty", "unsqueeze", "squeeze", "reshape", "alias", "gather",
            "scatter_add")      # touches one value a token; out of place only because this mode watches

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        flat = [t for value in args for t in (value if isinstance(value, (list, tuple)) else [value])]
        tensors = [t for t in flat if isinstance(t, torch.Tensor)]
        written = [t for t in (result if isinstance(result, tuple) else [result]) if isinstance(t, torch.Tensor)]
        if name == "embedding":
            self.bytes += 2 * result.nbytes     # reads the rows it was asked for, not the table
        elif name not in self.FREE:
            self.bytes += sum(t.nbytes for t in [*([] if name in ("bernoulli_", "fill_") else tensors), *written])
        return result


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("first, last", SLICES)
def test_moved_bytes_are_near_what_the_operators_move(first, last, dropout):
    config, batch = GPTConfig(layers=3, width=128, heads=4, sequence=64, dropout=dropout), 8
    stage, x, targets = GPTStage(config, first, last), inputs_of(config, first, batch), targets_of(config, batch)
    with OperatorBytes() as forward:
        y = step(stage, x, targets)
    gradient = torch.ones_like(y)
    with OperatorBytes() as backward:
        y.backward(gradient)
    for predicted, measured in zip(moved_bytes(config, first, last, batch), (forward.bytes, backward.bytes)):
        assert predicted == pytest.approx(measured, rel=0.01)


# Bad input

@pytest.mark.parametrize("ask, mend", [
    (lambda: saved_bytes(SMALL, -1, 3, 1), "0 <= first"),
    (lambda: matmul_flops(SMALL, 0, 3, 0), "batch=0.*take 1 or more"),
    (lambda: parameters(SMALL, 0, 6), "last <= 5"),
    (lambda: boundary_bytes(SMALL, -1), "batch=-1.*take 1 or more"),
])
def test_stages_that_cannot_be(ask, mend):
    with pytest.raises(Impossible, match=mend):
        ask()
