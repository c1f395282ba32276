"""The meeting of ranks that torchrun started: keys of the store that torchrun opened for them.

    here 3       what rank 3 says of itself
    refused      why there will be no run, by the rank that said so first

torchrun prints what its ranks say, and ends them when one ends. Ranks of other nodes learn here why
there is no run. Only JSON travels: nothing that came from the store is ever executed.
"""

import json
import platform
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache

import torch.distributed as dist

from ...core import Impossible, ranks
from ..process import border
from ..process.border import Place
from .peers import Peer

PATIENCE_S = 300.0  # for ranks that are on their way
LOOK_S = 0.01


class Meeting:
    """Rank `index` of the `size` ranks of one run, at a store; values are what JSON holds."""

    def __init__(self, store, index: int, size: int):
        self.store, self.index, self.size = store, index, size

    @classmethod
    def of(cls, place: Place) -> "Meeting":
        """That of this rank's next run: a script may start several."""
        store = store_of(place, border.meeting_point())
        number = store.add(f"runs of {place.index}", 1)
        return cls(dist.PrefixStore(f"run {number}", store), place.index, place.ranks)

    def post(self, key: str, value) -> None:
        """Leave this rank's value."""
        self.store.set(f"{key} {self.index}", json.dumps(value, default=str))

    def have(self, key: str, *of: int) -> bool:
        """Whether these ranks' values are there; all ranks' where none is named."""
        return self.store.check([f"{key} {rank}" for rank in of or range(self.size)])

    def everyones(self, key: str) -> list:
        """Each rank's value, by rank. Impossible where a rank cannot take part or does not come in
        time."""
        until = time.monotonic() + PATIENCE_S
        try:
            while not self.have(key):
                self.hear()
                if time.monotonic() > until:
                    late = [each for each in range(self.size) if not self.have(key, each)]
                    raise Impossible(
                        f"Rank {self.index} has waited {PATIENCE_S:.0f} s for {ranks(late)}: see"
                        " what their nodes say, and start the run again."
                    )
                time.sleep(LOOK_S)
            return [json.loads(self.store.get(f"{key} {rank}")) for rank in range(self.size)]
        except RuntimeError as error:
            raise Impossible(
                f"Rank {self.index} lost the connection to the store at "
                f"{border.meeting_point()}: rank 0 or its torchrun has ended; "
                "see what it says, and start the run again."
            ) from error

    def hear(self) -> None:
        """Impossible where another rank cannot take part."""
        if self.store.check(["refused"]):
            raise Impossible(self.store.get("refused").decode())

    def refuse(self, error: BaseException) -> None:
        """Let the other ranks hear why this one cannot take part, unless another was refused
        before."""
        kind = "" if isinstance(error, Impossible) else f"{type(error).__name__}: "
        told = f"Rank {self.index} on {platform.node()} cannot take part. {kind}{error}"
        with suppress(RuntimeError):  # the store has gone
            self.store.compare_set("refused", "", told)


@cache  # rank 0 may hold it, also for later runs
def store_of(place: Place, point: Peer):
    """The store that all ranks meet at; Impossible where it does not answer."""
    try:
        store = dist.TCPStore(
            point.host,
            point.port,
            place.ranks,
            is_master=place.hosts,
            timeout=timedelta(seconds=PATIENCE_S),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise Impossible(
            f"Rank {place.index} does not reach the store at {point}"
            f" ({str(error).splitlines()[0][:160]}): see whether rank 0 runs there, and try"
            f" `bigtrain doctor --peer {point}`."
        ) from error
    return dist.PrefixStore(f"bigtrain_lab {place.restart}", store)
