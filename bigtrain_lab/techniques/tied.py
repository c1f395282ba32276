"""One weight on two stages: each holds a copy, and both learn from the sum of their gradients.

    embedding on stage 0        g_0 --\\          /--> g_0 + g_1     summed in order of the stages,
                                       exchange                      so copies stay equal to the bit
    output on the last stage    g_1 --/          \\--> g_0 + g_1

Cost: an update sends one gradient of the weight to each other rank that holds a copy; a second
copy and its optimizer state. What earlier batches left in `.grad` is summed already: it is set
aside meanwhile.
Source: Press and Wolf 2017 (arXiv:1608.05859); across stages, Shoeybi et al. 2019, Megatron-LM
(arXiv:1909.08053).
"""

from collections.abc import Mapping
from zlib import crc32

import torch
from torch import Tensor, nn

from ..core import Impossible
from ..runtime.group import Group


class TiedWeight:
    """`ranks`: stage -> rank, of every stage with a copy; `own`: stage -> copy, of those on this
    rank: the parameter whose `.grad` the optimizer reads."""

    def __init__(self, group: Group, name: str, ranks: Mapping[int, int],
                 own: Mapping[int, nn.Parameter]):
        self.group, self.name = group, name
        self.ranks, self.own = dict(sorted(ranks.items())), own
        self.aside: dict[int, Tensor | None] = {}
        for stage, copy in own.items():
            copy.is_copy = stage != next(iter(self.ranks))
        self.looks = 2  # at the copies: before the first update and after it

    def begin(self) -> None:
        """Before the first backward of an update."""
        if self.looks:
            self.looks -= 1
            self._compare()
        self.aside = {stage: copy.grad for stage, copy in self.own.items()}
        for copy in self.own.values():
            copy.grad = None

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """After the last backward, before the update."""
        if not all(copy.requires_grad for copy in self.own.values()):
            for stage, copy in self.own.items():
                copy.grad = self.aside[stage]
            return
        if any(copy.grad is None for copy in self.own.values()):
            raise Impossible(f"Tied weight {self.name!r} got no gradient on rank "
                             f"{self.group.rank}: let its stage use it, or do not tie it.")
        parts = self._exchange("gradient", {stage: copy.grad for stage, copy in self.own.items()})
        for stage, copy in self.own.items():
            total = sum(parts[1:], parts[0])
            before = self.aside[stage]
            copy.grad = total.clone() if before is None else before.add_(total)
        self.aside = {}

    def _exchange(self, what: str, own: Mapping[int, Tensor]) -> list[Tensor]:
        """Every stage's tensor, in order of stage."""
        others = [rank for rank in dict.fromkeys(self.ranks.values()) if rank != self.group.rank]
        for stage, tensor in own.items():
            for rank in others:
                self.group.isend(tensor, rank, **self._message(what, stage))
        like = next(iter(own.values()))
        return [own[stage] if stage in own
                else self.group.recv(rank, **self._message(what, stage), like=like).to(like.device)
                for stage, rank in self.ranks.items()]

    def _message(self, what: str, stage: int) -> dict:
        name = f"{self.name} {what} of stage {stage}"
        return {"name": name, "site": name}

    def _compare(self) -> None:
        """Impossible where the copies differ, or only some learn."""
        looks = self._exchange("copy", {stage: look(copy) for stage, copy in self.own.items()})
        if any(not torch.equal(looks[0], other) for other in looks[1:]):
            raise Impossible(f"The copies of tied weight {self.name!r} on stages "
                             f"{list(self.ranks)} differ: start all from the same values, let all "
                             "learn or none, and update all by the same rule.")


def is_copy(parameter: Tensor) -> bool:
    """Whether a tied weight of another stage counts for this one, in a norm over all stages."""
    return getattr(parameter, "is_copy", False)


def look(copy: Tensor) -> Tensor:
    """A checksum of the values, and whether they learn."""
    values = copy.detach().cpu().contiguous().flatten().view(torch.uint8)
    return torch.tensor([crc32(values.numpy()), copy.requires_grad], device=copy.device)
