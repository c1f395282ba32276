"""The messages of tied weights in a plan: copies are compared, and their gradients summed. tied.py
sends them; the simulator reads them without tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..order.plan import Message, Plan, Recv, Send, lower
from ..order.schedule import Schedule

LOOKS = 2  # comparisons of the copies: before the first update and after it


class Copy(NamedTuple):
    """One message of an exchange: which copy's tensor, at which site of the program, and how."""

    number: int
    site: str
    way: Send | Recv


def exchange(
    name: str, what: str, ranks: Iterable[int], rank: int, batch: int, sizes: Mapping[str, int] = {}
) -> list[Copy]:
    """List a rank's messages by which it gets the tensors of all copies. `ranks`: of each copy, in
    order of the stages; `sizes`: site -> bytes."""
    ranks, sent, received = list(ranks), [], []
    for number, home in enumerate(ranks):
        site = f"{name} {what} {number}"
        message = Message(f"{site} of batch {batch}", bytes=sizes.get(site))
        if home != rank:
            received.append(Copy(number, site, Recv(home, message)))
        else:
            sent += [
                Copy(number, site, Send(dst, message))
                for dst in dict.fromkeys(ranks)
                if dst != rank
            ]
    return sent + received


def with_exchanges(
    schedule: Schedule, steps: int, tied: Mapping[str, Mapping[int, str]], sizes: Mapping[str, int]
) -> Plan:
    """Return the schedule's plan, with the messages of its tied weights."""
    plan = lower(schedule, steps)
    ties = {
        name: [schedule.rank_of(stage, 0) for stage in sorted(places)]
        for name, places in tied.items()
    }

    def exchanges(rank, what, batch):
        return (
            copy.way
            for name, ranks in ties.items()
            if rank in ranks
            for copy in exchange(name, what, ranks, rank, batch, sizes)
        )

    def lane(rank, ops):
        begun = summed = 0  # batches
        for op in ops:
            actions = () if isinstance(op, Send) else getattr(op, "step", None) or (op.message,)
            batches = {action.micro_batch // schedule.micro_batches for action in actions}
            if begun in batches:
                yield from exchanges(rank, "copy", begun) if begun < LOOKS else ()
                begun += 1
            if summed in batches and any(action.kind == "U" for action in actions):
                yield from exchanges(rank, "gradient", summed)
                summed += 1
            yield op

    return replace(plan, lanes={key: tuple(lane(key[0], ops)) for key, ops in plan.lanes.items()})
