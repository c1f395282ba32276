"""Ranks as threads of one process, for techniques: a Group of the runtime whose messages go through
the ranks of the exercises. A rank that nobody will answer ends the run at once, with a sentence."""

from collections import defaultdict
from functools import partial
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
from torch import nn

from bigtrain_lab.grading.ranks import Ranks
from bigtrain_lab.runtime import launch
from bigtrain_lab.runtime.talk.group import Alone, Group, Handle

WIDTH = 6


class Model(nn.Module):
    """A tied weight, which is not contiguous, a frozen one, one that only some samples or ranks use
    (if asked for), and a buffer that counts in the output."""

    def __init__(self, seed=0, spare=False, width=WIDTH):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.frozen, self.last = (nn.Linear(width, width) for _ in range(3))
        self.first.weight.data = self.first.weight.data.t().contiguous().t()
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.spare = nn.Linear(width, 1) if spare else None
        self.register_buffer("scale", torch.rand(()))
        self.register_buffer("calls", torch.tensor(seed))
        self.double()

    def forward(self, x, spare=False):
        x = self.last(torch.tanh(self.frozen(torch.tanh(self.first(x))))) * self.scale
        return x if spare is False else x + spare * self.spare(x)


def backward(module):
    """The module, after one of a sum."""
    module(torch.ones(1, 2)).sum().backward()
    return module


def patched(module):
    """The module, with a forward of its own: twice what it computed."""
    module.forward = lambda x, plain=module.forward: 2 * plain(x)
    return module


def on_threads(program, size: int, seed: int = 0) -> list:
    """What program(group) returned on each of `size` ranks."""
    ranks = Turns(size, seed)
    return ranks.run(lambda group: program(Threaded(group, ranks)))


def on_processes(program, size: int) -> list:
    """The same over gloo, as proof that it is the same; the program returns tensors by name."""

    def over_gloo(rank):
        torch.distributed.new_group([0])  # one more than others have: lanes are made all the same
        return program(rank.group())

    with TemporaryDirectory() as folder:
        run = launch(over_gloo, size, record=False, directory=f"{folder}/run")
        return [
            {name: torch.as_tensor(value) for name, value in found.items()} for found in run.results
        ]


class Turns(Ranks):
    """Each rank draws its own random numbers, as a process would."""

    def __init__(self, size: int, seed: int):
        super().__init__(size, seed)
        self.told = defaultdict(dict)  # number of an agreement -> rank -> its text

    def until(self, group, call, peer, ready):
        drawn = torch.get_rng_state()
        super().until(group, call, peer, ready)
        torch.set_rng_state(drawn)


class Threaded(Group):
    def __init__(self, inner, ranks: Turns):
        self.inner, self.ranks = inner, ranks
        self.rank, self.size, self.lanes = inner.rank, inner.size, {}
        self.broadcast, self.finish = inner.broadcast, inner.finish
        self.all_reduce, self.reduce_scatter = inner.all_reduce, inner.reduce_scatter
        self.all_gather = inner.all_gather

    def isend(self, tensor, dst, name="", site="", tag=0, agreed=False):
        self.inner.isend(tensor, dst, name, site, tag)

    def recv(self, src, name="", site="", tag=0, like=None):
        return self.inner.recv(src, name, site, tag)

    def irecv(self, buffer, src, name="", site="", tag=0, agreed=False):
        def take():
            message = self.inner.recv(src, name, site, tag)
            return message if buffer is None else buffer.copy_(message)

        return Handle(None, take)

    def lane(self, name=""):
        if name not in self.lanes:
            self.lanes[name] = ThreadedLane(self.inner.lane(name or "comm"), self.ranks)
        return self.lanes[name]

    def differing(self, text, name=""):
        self.agreements += 1
        told = self.ranks.told[self.inner.name, self.agreements]
        told[self.rank] = text
        call = f"agreement number {self.agreements}"
        self.ranks.until(self.inner, call, self.rank, lambda: len(told) == self.size)
        return [] if len(set(told.values())) == 1 else [told[rank] for rank in range(self.size)]

    def agreement(self, text, name=""):
        """Of ranks that take turns it comes at once; all messages are those of one site."""
        return SimpleNamespace(site="", differing=partial(self.differing, text))

    def world_rank(self, rank):
        return rank


class ThreadedLane:
    def __init__(self, inner, ranks: Turns):
        self.inner, self.name, self.group = inner, "comm", Threaded(inner.group, ranks)

    def launch(self, function, name="", timed=True):
        gradients = torch.is_grad_enabled()

        def run(_):
            with torch.set_grad_enabled(gradients):
                return function(self.group)

        launched = self.inner.launch(run, name)
        launched.settle = launched.wait
        return launched


class Absent(Alone):
    """One rank of a group of which nobody else is there."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size

    def differing(self, text, name=""):
        return []

    def unrecorded(self):
        return self

    def broadcast(self, tensor, src=0, name=""):
        return tensor
