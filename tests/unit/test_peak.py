"""The account of a training step, from shapes alone: storage by storage against torch, and the example of the lesson."""

import random
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import (GPT, GPTConfig, Noise, cross_entropy, gpt_steps, layered_mlp, mlp_steps, parameters, peak_bytes,
                                 saved_bytes)
from bigtrain_lab.runtime import Ledger

OPTIMIZERS = {"sgd": lambda p: torch.optim.SGD(p, 1e-3), "momentum": lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
              "adam": lambda p: torch.optim.Adam(p, 1e-3)}


class Witness(TorchDispatchMode):
    """Bytes of every storage that any operator returns, from its birth to its death; nothing of the library in it."""

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
                with self.during(f"F{step}"):
                    loss = loss_of()
                with self.during(f"B{step}"):
                    loss.backward()
                with self.during(f"U{step}"):
                    update.step()
                    update.zero_grad()
        return self

    @property
    def peaks(self):
        return [max(level for action, level in self.levels if action[1:] == str(step)) for step in range(2)]


def differences(account, seen):
    """What is wrong: the action's births or its peak, the bytes at its end, the peaks of the steps. (In which order a node of the
    graph makes its gradients is left open: all of them are there before it lets go of anything.)"""
    told = {}
    for moment, level in zip(account.moments, account.levels):
        if moment.name != "end":
            told.setdefault(moment.action, []).append(level)
    found = {}
    for action, level in seen.levels:
        found.setdefault(action, []).append(level)
    wrong = [action for action in found if max(found[action]) != max(told[action]) or len(found[action]) != len(told[action])]
    wrong += [action for action, level in seen.ends.items() if sum(account.after(action).values()) != level]
    return wrong + ([] if seen.peaks == [account.peak_of(0), account.peak_of(1)] else ["peaks"])


def random_gpt(seed):
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    config = GPTConfig(layers=draw.randint(1, 3), width=heads * draw.randint(2, 12), heads=heads, sequence=draw.randint(2, 24),
                       vocabulary=draw.randint(2, 300), dropout=draw.choice([0, 0.1]), tied=draw.random() < 0.3,
                       dtype=draw.choice([torch.float32, torch.float32, torch.float64]))
    return config, draw.randint(1, 6), draw.choice(["adam", "adam", "sgd", "momentum"])


@pytest.mark.parametrize("seed", range(20))
def test_a_transformer_s_account_is_what_torch_holds(seed):
    config, batch, optimizer = random_gpt(seed)
    model, ids = GPT(config), torch.randint(config.vocabulary, (batch, config.sequence))
    seen = Witness(ids).train(model, lambda: cross_entropy(model(ids, Noise(0, 0, 0)), ids), optimizer, 2)
    assert differences(gpt_steps(config, batch, optimizer), seen) == []


def random_mlp(seed):
    draw = random.Random(seed)
    sizes, batch, dtype = [draw.randint(1, 60) for _ in range(draw.randint(2, 5))], draw.randint(1, 50), draw.choice([torch.float32, torch.float64])
    optimizer, bend = draw.choice(list(OPTIMIZERS)), draw.choice([nn.Tanh, nn.ReLU])
    layers = [layer for inner, outer in zip(sizes, sizes[1:]) for layer in (nn.Linear(inner, outer, dtype=dtype), bend())][:-1]
    model, x, targets = nn.Sequential(*layers), torch.randn(batch, sizes[0], dtype=dtype), torch.randint(sizes[-1], (batch,))
    return sizes, batch, dtype, optimizer, model, x, targets


@pytest.mark.parametrize("seed", range(20))
def test_an_mlp_s_account_is_what_torch_holds(seed):
    sizes, batch, dtype, optimizer, model, x, targets = random_mlp(seed)
    seen = Witness(x, targets).train(model, lambda: cross_entropy(model(x), targets), optimizer, 2)
    assert differences(mlp_steps(sizes, batch, optimizer, dtype), seen) == []


def by_the_ledger(model, loss_of, optimizer):
    update = OPTIMIZERS[optimizer](model.parameters())
    with Ledger(model, update) as ledger:
        for _ in range(2):
            loss = loss_of()
            loss.backward()
            update.step()
            update.zero_grad()
    return ledger


def kinds_of(ledger):
    alive = ledger.at_peak()
    return {kind: sum(row.bytes for row in alive if row.kind == kind) for kind in {row.kind for row in alive}}


@pytest.mark.parametrize("seed", range(20))
def test_a_transformer_s_account_is_what_the_ledger_counts(seed):
    config, batch, optimizer = random_gpt(seed)
    model, ids = GPT(config), torch.randint(config.vocabulary, (batch, config.sequence))
    ledger = by_the_ledger(model, lambda: cross_entropy(model(ids, Noise(0, 0, 0)), ids), optimizer)
    account = gpt_steps(config, batch, optimizer)
    assert ledger.peak_bytes == account.peak_bytes and kinds_of(ledger) == account.kinds(account.peak_moment)


@pytest.mark.parametrize("seed", range(20))
def test_an_mlp_s_account_is_what_the_ledger_counts(seed):
    sizes, batch, dtype, optimizer, model, x, targets = random_mlp(seed)
    ledger = by_the_ledger(model, lambda: cross_entropy(model(x), targets), optimizer)
    account = mlp_steps(sizes, batch, optimizer, dtype)
    assert ledger.peak_bytes == account.peak_bytes and kinds_of(ledger) == account.kinds(account.peak_moment)


def test_the_library_s_own_mlp_has_no_bias():
    (model,), x, targets = layered_mlp(4, 16), torch.randn(8, 16), torch.randint(16, (8,))
    seen = Witness(x, targets).train(model, lambda: cross_entropy(model(x), targets), "adam", 2)
    assert differences(mlp_steps([16] * 5, 8, bias=False), seen) == []


@pytest.mark.parametrize("config, batch", [(GPTConfig(layers=2, width=32, sequence=20), 3), (GPTConfig(layers=2, width=64, sequence=40, tied=True), 4)])
def test_unobserved_the_peak_is_that_of_torch_s_allocator(config, batch):
    """The profiler hears every allocation, also inside kernels: they add a few scalars here."""
    model, ids = GPT(config), torch.randint(config.vocabulary, (batch, config.sequence))
    update, held = torch.optim.Adam(model.parameters()), [sum(weight.nbytes for weight in model.parameters())]
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


def test_closed_forms():
    """16 bytes a parameter under Adam in float32; three of the logits' size at the loss; what autograd saves."""
    config, batch = GPTConfig(layers=2, width=16, heads=2, sequence=8, vocabulary=5000), 16
    account, P = gpt_steps(config, batch), parameters(config, 0, config.pieces)
    logits = batch * config.sequence * config.vocabulary * 4
    steps = 4 * len([row for row in account.rows if row.kind == "weights"])  # a 4-byte count for each tensor
    assert account.after("U0") == {"weights": 4 * P, "optimizer": 8 * P + steps, "temporaries": 4}
    assert account.after("B1") == {"weights": 4 * P, "gradients": 4 * P, "optimizer": 8 * P + steps, "temporaries": 4}
    assert account.after("F1")["activations"] == sum(row.bytes for row in saved_bytes(config, 0, config.pieces, batch))
    assert account.peak_of(1) - account.peak_of(0) == 8 * P + steps  # both are at the loss
    assert [row.bytes for row in account.at_peak()[:3]] == [logits] * 3
    assert account.moments[account.peak_moment].action == "B1"


def test_the_widths_of_an_mlp_or_a_config():
    config = GPTConfig(layers=1, width=8, heads=2, sequence=4, vocabulary=10)
    assert peak_bytes(config, 2, "sgd") == gpt_steps(config, 2, "sgd").peak_bytes
    assert peak_bytes((6, 5, 4), 3, "adam", torch.float64) == mlp_steps((6, 5, 4), 3, "adam", torch.float64).peak_bytes
    assert peak_bytes((6, 5, 4), 50, steps=1) == mlp_steps((6, 5, 4), 50).peak_of(0) < peak_bytes((6, 5, 4), 50)


@pytest.mark.parametrize("call, sentence", [
    (lambda: peak_bytes((6,), 3), "give at least two"), (lambda: peak_bytes((6, 0), 3), "a width=0"),
    (lambda: peak_bytes((6, 5), 0), "batch=0"), (lambda: peak_bytes((6, 5), 3, "lamb"), "choose one of sgd, momentum, adam"),
    (lambda: peak_bytes((6, 5), 3, "adam", torch.int64), "holds no fractions"), (lambda: peak_bytes((6, 5), 3, steps=0), "steps=0")])
def test_impossible(call, sentence):
    with pytest.raises(Impossible, match=sentence):
        call()
