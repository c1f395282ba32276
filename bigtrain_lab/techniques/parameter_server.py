"""A parameter server: workers send gradients, it updates the weights and sends them back.

    worker 0   [F B]--g-->      [F B]--g-->          one request: send a gradient, receive weights
    server             [w - lr g]    [w - lr g]      [w - lr g]
    worker 1   [F   B]-------g---------^  <--w--

    synchronous    w <- w - lr/W sum_p g_p(w)    one update a round: all wait for the slowest worker
    asynchronous   w <- w - lr g_p(w_read)       an update for each gradient: no worker waits
    bounded by s   the same, but no worker is more than s batches ahead of the slowest one

Staleness of a gradient: the updates of its server between the worker's read and this gradient's
update. For a worker that is d times slower than W - 1 others, it is about d (W - 1). Under a bound
s it is at most (2s + 1)(W - 1). A bound lets workers run ahead while one is slow for a moment. If
one is always slow, all take its pace. Bound 0 is not synchronous: it applies the gradients of a
round one by one, with staleness 0, 1, ..., W - 1.

Several servers share the parameters. Each counts its own updates. So a worker may compute with
version 7 of one server's part and version 8 of another's.

Bytes: each worker's batch takes S bytes into the server and S out of it. In a round its link
carries W S each way; in a ring all-reduce a rank sends 2 (W-1)/W S. K servers carry about S/K each.
Memory: a worker has a copy of the weights. A server has weights and optimizer state, and one sum if
synchronous.
Source: Dean et al. 2012, Large scale distributed deep networks (NIPS), section 4.1; Ho et al. 2013,
More effective distributed ML via a stale synchronous parallel parameter server (NIPS);
Li et al. 2014, Scaling distributed machine learning with the parameter server (OSDI), section 3.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..order.plan import Message
from ..runtime.talk.execute import Work, run
from ..runtime.talk.group import Group
from .flat import Flat
from .guards import parameter_server as guard
from .guards.optimizers import refuse_beyond
from .replicas import broadcast
from .server_plan import order, shares


class Worker(Work):
    """Worker's part of the plan. `loss`: number of a batch -> its loss; `shards`: the parameters of
    each server."""

    def __init__(self, loss: Callable[[int], Tensor], shards: Sequence[Sequence[nn.Parameter]]):
        self.loss_of, self.shards, self.loss = loss, shards, None

    def compute(self, action):
        if action.kind == "F":
            self.loss = self.loss_of(action.micro_batch)
        else:
            self.loss.backward()
            self.loss = None

    def send(self, message):
        parameters = self.shards[server_of(message)]
        guard.refuse_no_gradient(parameters, message)
        gradient = flat([p.grad for p in parameters])
        for parameter in parameters:
            parameter.grad = None
        return gradient

    def receive(self, message, tensor):
        copy(tensor, self.shards[server_of(message)])


class Update(NamedTuple):
    """Staleness, in updates, of a worker's gradient when the server used it."""

    worker: int
    batch: int
    staleness: int


class Server(Work):
    """Server of parameters, stepped by each gradient, or by the mean of `average` of them."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        workers: int,
        average: int = 1,
    ):
        self.parameters, self.optimizer, self.average = parameters, optimizer, average
        self.sum = torch.zeros_like(flat(parameters)) if average > 1 else None
        # updates made; the version that each worker read last
        self.version, self.read = 0, [0] * workers
        self.applied: list[Update] = []

    def request(self, place, number, tensor):
        self.applied.append(Update(place, number, self.version - self.read[place]))
        if self.sum is not None:
            tensor = self.sum.add_(tensor, alpha=1 / self.average)
        if len(self.applied) % self.average == 0:
            self.update(tensor)

    def update(self, gradient: Tensor) -> None:
        for parameter, part in zip(self.parameters, Flat(self.parameters, 1, 0).views(gradient)):
            parameter.grad = part
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.version += 1
        if self.sum is not None:
            self.sum.zero_()

    def answer(self, place, number):
        self.read[place] = self.version
        return flat(self.parameters)


class ParameterServer:
    """Training of a module by servers; every rank makes one and calls `run`.

        service = ParameterServer(model, partial(SGD, lr=0.1), requests=100, servers=1, bound=3)
        service.run(lambda number: loss_fn(model(x[number]), y[number]))

    optimizer    parameters -> a torch optimizer; each server makes one for its own parameters
    requests     batches of each worker; a number: the same for all
    servers      number of servers, the last ranks; each has whole parameters, about equal bytes
    bound        how many batches a worker may be ahead of the slowest; None: any number
    synchronous  one update a round, by the mean of all workers' gradients
    group        None (torch's default group), a ProcessGroup, or a Group

    Parameters and buffers are those of rank 0 at first. After `run` all ranks have the last
    weights; buffers, such as a batch norm's, are each rank's own. Without a modelled clock a server
    takes the workers' requests in turn, since their order on the wall clock is chance.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable,
        requests: int | Sequence[int],
        servers: int = 1,
        bound: int | None = None,
        synchronous: bool = False,
        group=None,
    ):
        self.group = Group.of(group).anew()
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        requests = guard.requests_of(
            module, named, requests, servers, bound, synchronous, self.group
        )
        broadcast([*module.parameters(), *module.buffers()], self.group.unrecorded())
        learnt = list(named.values())
        self.shards = [
            [learnt[i] for i in own] for own in shares([p.nbytes for p in learnt], servers)
        ]
        sizes = [sum(p.nbytes for p in shard) for shard in self.shards]
        self.plan = order(requests, sizes, bound, synchronous)
        self.workers, self.server = len(requests), None
        if self.group.rank >= self.workers:
            own = self.shards[self.group.rank - self.workers]
            made = optimizer(own)
            refuse_beyond(made, servers, "servers", "take one server, or leave that out")
            self.server = Server(own, made, self.workers, self.workers if synchronous else 1)

    def run(self, loss: Callable[[int], Tensor] | None = None) -> list[Update]:
        """Train; `loss` is called on workers only. Return the updates of this server; [] on a
        worker."""
        guard.refuse_no_loss(loss, self)
        for shard in self.shards:
            for parameter in shard:
                parameter.grad = None  # drop what an earlier backward left there
        run(
            self.plan.lanes[self.group.rank, "compute"],
            self.group,
            self.server or Worker(loss, self.shards),
            {},
            {},
        )
        for number, shard in enumerate(self.shards):
            copy(self.group.unrecorded().broadcast(flat(shard), self.workers + number), shard)
        return self.server.applied if self.server else []


def server_of(message: Message) -> int:
    """Return 1 for the message "server 1 asked 0.3"."""
    return int(message.name.split()[1])


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Copy the tensors into one, one after the other."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@torch.no_grad()
def copy(tensor: Tensor, into: Sequence[Tensor]) -> None:
    for each, part in zip(into, Flat(into, 1, 0).views(tensor)):
        each.copy_(part)
