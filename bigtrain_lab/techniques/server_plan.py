"""The plan of a parameter server: requests of workers, answers of servers. parameter_server.py
carries it out; the simulator reads it without tensors."""

from collections.abc import Iterator, Sequence

from ..order.plan import Compute, Plan, Recv, Send, Serve
from ..order.schedule import Action
from .guards import server_plan as guard


def order(
    requests: Sequence[int],
    shard_bytes: Sequence[int | None] = (None,),
    bound: int | None = None,
    synchronous: bool = False,
) -> Plan:
    """Return the plan of worker p = 0, 1, ... with requests[p] batches, and then of one server for
    each of `shard_bytes`, the bytes of its parameters. `bound` None: nobody waits."""
    guard.refuse_order(requests, shard_bytes, bound, synchronous)
    workers = tuple(range(len(requests)))
    bound = 0 if synchronous else bound  # a round's answers wait for its last gradient
    servers = {
        len(workers) + k: Serve(workers, tuple(requests), size, size, bound, f"server {k}")
        for k, size in enumerate(shard_bytes)
    }

    def batches(worker: int) -> Iterator:
        for number in range(requests[worker]):
            yield Compute((Action("F", worker, number),))
            yield Compute((Action("B", worker, number),))
            for rank, server in servers.items():
                yield Send(rank, server.ask(worker, number))
            for rank, server in servers.items():
                yield Recv(rank, server.answer(worker, number))

    lanes = {(worker, "compute"): tuple(batches(worker)) for worker in workers}
    lanes |= {(rank, "compute"): (server,) for rank, server in servers.items()}
    return Plan(lanes, len(workers) + len(servers), min(requests))


def shares(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Divide parameters among servers: the largest first, each to the server that has the least."""
    owned: list[list[int]] = [[] for _ in range(servers)]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        min(owned, key=lambda own: (sum(sizes[j] for j in own), len(own))).append(i)
    return [sorted(own) for own in owned]
