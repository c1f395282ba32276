"""The frame of LAMB and LARS: a step on a layer needs norms of the whole layer first.

A layer here is one parameter tensor. Its step reads it twice: for the norms, then for the update.
All tensors of one format are together in each operator, and over several ranks one message sums the
squares of all norms.

Ranks may have pieces of a tensor, or the same whole tensor: of that only rank 0 adds the square.

Bytes sent: an all-reduce of 16 bytes a tensor. With max_grad_norm another one, of 8 bytes a tensor,
goes first. Memory: what `direction` returns, of all tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core import grouped
from ..runtime.talk.group import Group
from .guards import layerwise as guard, refuse_settings
from .tensor_parallel import cut_of

# torch documents its _foreach operators, underscore and all.
BLOCK = 2**19  # elements of a float32 norm, which is off by 3e-6 then


class Batch(NamedTuple):
    """Parameters of equal options and format: lists for torch's foreach operators. All tensors are
    contiguous; half formats are float32 here."""

    parameters: list[Tensor]
    x: list[Tensor]  # a parameter itself, or a float32 or contiguous copy
    g: list[Tensor]
    # Step counts before this update. Copies, since torch's fused Adam adds 1 in place.
    steps: list[Tensor]
    state: list[list[Tensor]]
    options: dict


class LayerWise(Optimizer):
    """Optimizer that scales each layer's step by a ratio of norms. A subclass defines

    state_names                                 its state tensors, of a parameter's shape
    direction(batch) -> u                       updates the state; the norms of u are then taken
    ratio(x_norm, u_norm, options) -> vector    the trust ratio of each parameter
    apply(batch, u, rates)                      steps batch.x; rates: ratio times lr
    """

    state_names: tuple[str, ...]
    gradient_divisor: Tensor | None = None  # max(1, |g| / max_grad_norm)
    _ratios: Sequence[tuple[list[Tensor], Tensor]] = ()

    def __init__(
        self,
        params,
        defaults: dict,
        group=None,
        pieces: Callable[[Tensor], bool] | None = None,
        max_grad_norm: float | None = None,
    ):
        refuse_settings(guard.OPTIONS, defaults | {"max_grad_norm": max_grad_norm})
        self.ranks, self.pieces = None if group is None else Group.of(group), pieces or cut_of
        self.max_grad_norm = max_grad_norm
        super().__init__(params, {"trust_ratio": True} | defaults)

    def among(self, group, pieces: Callable[[Tensor], bool] | None = None) -> "LayerWise":
        """Sum norms over the ranks of a group, which have pieces of the parameters. An optimizer
        that was given a group keeps it."""
        if self.ranks is None:
            self.ranks, self.pieces = Group.of(group), pieces or self.pieces
        return self

    @property
    def trust_ratios(self) -> dict[Tensor, float]:
        """Parameter -> its ratio in the last step."""
        return {
            p: ratio
            for parameters, ratios in self._ratios
            for p, ratio in zip(parameters, ratios.tolist())
        }

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(param_group)
        refuse_settings(guard.OPTIONS, self.param_groups[-1])
        guard.refuse_parameters(self.param_groups[-1]["params"])

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Update the parameters that have gradients; return what `closure` returns, if given. All
        ranks of a group call it together."""
        loss = torch.enable_grad()(closure)() if closure is not None else None
        if self.max_grad_norm is not None:
            self.gradient_divisor = (self._gradient_norm() / self.max_grad_norm).clamp(min=1.0)
        self._ratios, batches = [], [*self._batches()]
        us = [self.direction(batch) for batch in batches]
        norms = [norms_of([*batch.x, *u]).view(2, -1) for batch, u in zip(batches, us)]
        if self._shared:  # one message carries all norms
            norms = self._of_whole(norms, [batch.parameters for batch in batches])
        for batch, u, (x_norm, u_norm) in zip(batches, us, norms):
            options, ratio = batch.options, torch.ones_like(x_norm)
            if options["trust_ratio"]:
                ratio = self.ratio(x_norm, u_norm, options)
            self._ratios.append((batch.parameters, ratio))
            self.apply(batch, u, [*(ratio * options["lr"]).to(batch.x[0].dtype)])
            for p, x in zip(batch.parameters, batch.x):
                if p is not x:
                    p.copy_(x)
        return loss

    def __getstate__(self) -> dict:
        """Return the state for copies and pickles; torch keeps only what a step changes."""
        return super().__getstate__() | {
            "ranks": self.ranks,
            "pieces": self.pieces,
            "max_grad_norm": self.max_grad_norm,
            "gradient_divisor": self.gradient_divisor,
            "_ratios": [],
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Load as torch does, but keep the state of half parameters float32."""
        super().load_state_dict(state_dict)
        numbers = chain.from_iterable(saved["params"] for saved in state_dict["param_groups"])
        parameters = chain.from_iterable(options["params"] for options in self.param_groups)
        for number, p in zip(numbers, parameters):
            for name, value in state_dict["state"].get(number, {}).items():
                dtype = torch.float32 if name == "step" else wide(p.dtype)
                self.state[p][name] = value.detach().to(p.device, dtype, copy=True)

    @property
    def _shared(self) -> bool:
        return self.ranks is not None and self.ranks.size > 1

    def _batches(self) -> Iterator[Batch]:
        """Yield the parameters that have gradients; count their steps."""
        for options in self.param_groups:
            moved = (p for p in options["params"] if p.grad is not None)
            for alike in grouped(((p.device, p.dtype), p) for p in moved).values():
                states = [self._state_of(p) for p in alike]
                steps = [state["step"] for state in states]
                before = torch.stack(steps)
                torch._foreach_add_(steps, 1)
                yield Batch(
                    alike,
                    [*map(plain, alike)],
                    [plain(p.grad) for p in alike],
                    [*before.unbind()],
                    [[state[name] for state in states] for name in self.state_names],
                    options,
                )

    def _state_of(self, p: Tensor) -> dict[str, Tensor]:
        if not (state := self.state[p]):
            state["step"] = torch.zeros((), device=p.device)
            for name in self.state_names:
                state[name] = torch.zeros_like(
                    p, dtype=wide(p.dtype), memory_format=torch.contiguous_format
                )
        return state

    def _gradient_norm(self) -> Tensor:
        """Return the norm of the gradients of all parameters, over all ranks."""
        learnt = [
            p for options in self.param_groups for p in options["params"] if p.grad is not None
        ]
        norms = norms_of([plain(p.grad) for p in learnt])[None]
        if self._shared:
            (norms,) = self._of_whole([norms], [learnt], rows=1)
        return torch.linalg.vector_norm(norms)

    def _of_whole(self, norms: list[Tensor], learnt: list[list[Tensor]], rows=2) -> list[Tensor]:
        """Return the norms of whole parameters from those of the ranks' pieces. Of a tensor that
        all ranks have, rank 0's counts. A parameter without a gradient on this rank adds 0."""
        every = [p for options in self.param_groups for p in options["params"]]
        none = torch.zeros(rows, dtype=torch.float64, device=every[0].device)
        found = dict.fromkeys(every, none)
        for own, each in zip(learnt, norms):
            for p, square in zip(own, each.square().unbind(1)):
                if self.ranks.rank == 0 or self.pieces(p):
                    found[p] = square
        squares = torch.stack([*found.values()], 1)
        self.ranks.all_reduce(squares, name="norms of layers")
        found = dict(zip(every, squares.sqrt().unbind(1)))
        return [torch.stack([found[p] for p in own] or [none], 1) for own in learnt]


def norms_of(tensors: list[Tensor]) -> Tensor:
    """Return the norms of tensors, in float64: over blocks, since torch's float32 norm of five
    million elements is off by 1e-4."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    blocks = [each.view(-1).split(BLOCK) for each in tensors]
    norms = torch.stack(torch._foreach_norm([*chain(*blocks)])).double()
    if len(norms) > len(tensors):
        norms = torch.stack(torch._foreach_norm(norms.split([*map(len, blocks)])))
    return norms


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half formats."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def plain(tensor: Tensor) -> Tensor:
    return tensor.to(wide(tensor.dtype)).contiguous()
