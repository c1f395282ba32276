"""Two lanes of a rank busy at once: what real ranks model is what the simulator predicts, and a failure on a lane is told."""

import pytest
import torch

from bigtrain_lab.core import Cost, Link, Mesh
from bigtrain_lab.plan import Compute, Launch, Message, Plan, Recv, Send, Together, Wait
from bigtrain_lab.runtime import launch
from bigtrain_lab.runtime.execute import Work, execute
from bigtrain_lab.schedule import Action
from bigtrain_lab.simulate import simulate

from .test_group import lanes_of

RANKS, BUCKETS, NUMBERS = 4, 3, 10  # numbers of a bucket do not divide into as many chunks as there are ranks
LINKS = {(a, b): Link(170 + 10 * a + b, 7, 3) for a in range(RANKS) for b in range(RANKS)}


def ring(rank, bucket):
    """A bucket's ring all-reduce in moves: (what is sent on, what is received) of each round; the second half carries sums."""
    def move(turn, at):
        chunk = (at - turn) % RANKS if turn < RANKS - 1 else (at - turn + RANKS) % RANKS
        count = [len(part) for part in torch.zeros(NUMBERS).tensor_split(RANKS)][chunk]
        return Message(f"bucket {bucket}, round {turn}, chunk {chunk}", "sum" if turn < RANKS - 1 else "copy", 8 * count)
    left, right = (rank - 1) % RANKS, (rank + 1) % RANKS
    for turn in range(2 * (RANKS - 1)):
        yield Send(right, move(turn, rank))
        yield Recv(left, move(turn, left))


def overlapped(how) -> Plan:
    """A backward of several layers, each of whose gradients is reduced while the next is computed."""
    lanes = {}
    for rank in range(RANKS):
        back = [op for layer in range(BUCKETS) for op in (Compute((Action("B", layer, 0),), beside=layer > 0), Launch(f"gradient {layer}"))]
        lanes[rank, "compute"] = (Compute((Action("F", 0, 0),)), *back, Wait("all is reduced"), Compute((Action("U", 0, 0),)))
        reduce = {"ring": lambda bucket: ring(rank, bucket),  # noqa: B023  (called at once)
                  "backend": lambda bucket: [Together(f"bucket {bucket}", "all_reduce", 8 * NUMBERS, tuple(range(RANKS)))]}[how]
        lanes[rank, "comm:dp"] = (*(op for bucket in range(BUCKETS) for op in (Wait(f"gradient {bucket}"), *reduce(bucket))), Launch("all is reduced"))
    return Plan(lanes, RANKS)


class Gradients(Work):
    """Of each layer a gradient, the rank's own number everywhere; reduced in place."""

    def __init__(self, rank):
        self.rank, self.of = rank, {}

    def compute(self, action):
        if action.kind == "B":
            self.of[action.stage] = torch.arange(NUMBERS, dtype=torch.float64) + 100 * (self.rank + 1) * (action.stage + 1)

    def chunk(self, message):
        bucket, _, chunk = (int(part.split()[1]) for part in message.name.split(", "))
        return self.of[bucket].tensor_split(RANKS)[chunk]

    def send(self, message):
        return self.chunk(message).clone()

    def receive(self, message, tensor):
        own = self.chunk(message)
        own.add_(tensor) if message.kind == "sum" else own.copy_(tensor)

    def together(self, op, group):
        group.all_reduce(self.of[int(op.name.split()[1])], name=op.name)


@pytest.mark.parametrize("links", [False, True], ids=["free", "links"])
@pytest.mark.parametrize("how", ["ring", "backend"])
def test_two_lanes_that_are_busy_at_once_are_as_predicted(how, links, tmp_path):
    """Though ranks and lanes sleep at random; and the gradients are the sums of all ranks, on every rank."""
    plan = overlapped(how)
    cost = Cost({"F": 1, "B": ["1.3", 2, 1], "U": 1}, links=LINKS if links else {}, slowdown={1: 1.5}, overlap_slowdown="1.13")

    def program(rank):
        work = Gradients(rank.index)
        execute(plan, rank, work)
        return {f"gradient {layer}": gradient for layer, gradient in work.of.items()}

    run = launch(program, RANKS, cost=cost, jitter_s=0.003, directory=tmp_path / "run")
    modelled, predicted = run.wait(), simulate(plan, cost)
    assert lanes_of(modelled) == lanes_of(predicted) and (0, "comm:dp") in lanes_of(modelled)
    backwards = [s for s in modelled.spans(0) if s.kind == "B"]
    assert not links or any(e.start < s.end and s.start < e.end for e in modelled.where(rank=0, lane="comm:dp") for s in backwards)
    assert modelled.bytes_sent(0) == BUCKETS * 2 * 3 / 4 * 8 * NUMBERS
    for layer in range(BUCKETS):
        expected = RANKS * torch.arange(NUMBERS, dtype=torch.float64) + 1000 * (layer + 1)
        assert all((result[f"gradient {layer}"] == expected.numpy()).all() for result in run.results)
