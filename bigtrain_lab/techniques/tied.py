"""One weight on two stages: each holds a copy, and both learn from the sum of their gradients.

    embedding on stage 0        g_0 --\\          /--> g_0 + g_1     summed in order of the stages,
                                       exchange                      so copies stay equal to the bit
    output on the last stage    g_1 --/          \\--> g_0 + g_1

Cost: an update sends one gradient of the weight to each other rank that holds a copy; a second
copy and its optimizer state. A gradient that an earlier batch left in `.grad` is summed already. It
would be summed twice, and is refused.
Source: Press and Wolf 2017 (arXiv:1608.05859); across stages, Shoeybi et al. 2019, Megatron-LM
(arXiv:1909.08053).
"""

from collections.abc import Mapping
from zlib import crc32

import torch
from torch import Tensor, nn

from ..order.plan import Send
from ..runtime.talk.group import Group
from ..runtime.talk.message import as_bytes
from .guards import refuse
from .shards import COPIES
from .tied_plan import LOOKS, exchange


class TiedWeight:
    """Copies of one weight. `ranks`: stage -> rank, of every stage with a copy; `own`: stage ->
    copy, of those on this rank: the parameter whose `.grad` the optimizer reads."""

    def __init__(
        self, group: Group, name: str, ranks: Mapping[int, int], own: Mapping[int, nn.Parameter]
    ):
        self.group, self.name = group, name
        self.ranks, self.own = dict(sorted(ranks.items())), own
        COPIES.update(
            {copy: True for stage, copy in own.items() if stage != next(iter(self.ranks))}
        )
        self.batch = -1

    def begin(self) -> None:
        """Refuse copies that differ, and gradients of earlier batches, before the first backward of
        an update."""
        self.batch += 1
        if self.batch < LOOKS:
            self._compare()
        refuse(
            (
                any(copy.grad is not None for copy in self.own.values()),
                f"Tied weight {self.name!r} has a gradient of an earlier batch on rank "
                f"{self.group.rank}: call zero_grad() of its optimizer after each step.",
            )
        )

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """Sum the gradients of all copies, after the last backward and before the update."""
        if not all(copy.requires_grad for copy in self.own.values()):
            return
        refuse(
            (
                any(copy.grad is None for copy in self.own.values()),
                f"Tied weight {self.name!r} got no gradient on rank "
                f"{self.group.rank}: let its stage use it, or do not tie it.",
            )
        )
        parts = self._exchange("gradient", {stage: copy.grad for stage, copy in self.own.items()})
        total = sum(parts[1:], parts[0])
        for copy in self.own.values():
            copy.grad = torch.empty_like(copy).copy_(total)  # what was sent stays as it was

    def _exchange(self, what: str, own: Mapping[int, Tensor]) -> list[Tensor]:
        """Return every stage's tensor, in order of stage."""
        parts = [own.get(stage) for stage in self.ranks]
        like, group = next(iter(own.values())), self.group
        for number, site, way in exchange(
            self.name, what, self.ranks.values(), group.rank, self.batch
        ):
            if isinstance(way, Send):
                group.isend(parts[number], way.dst, way.message.name, site)
            else:
                parts[number] = group.recv(way.src, way.message.name, site, like=like).to(
                    like.device
                )
        return parts

    def _compare(self) -> None:
        """Refuse copies that differ, or of which only some learn."""
        looks = self._exchange("copy", {stage: look(copy) for stage, copy in self.own.items()})
        refuse(
            (
                any(bool((looks[0] != other).any()) for other in looks[1:]),
                f"The copies of tied weight {self.name!r} on stages "
                f"{list(self.ranks)} differ: start all from the same values, let all "
                "learn or none, and update all by the same rule.",
            )
        )


def look(copy: Tensor) -> Tensor:
    """Return a checksum of the values, and whether they learn."""
    return torch.tensor(
        [crc32(as_bytes(copy.cpu()).numpy()), copy.requires_grad], device=copy.device
    )
