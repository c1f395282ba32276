"""The frame of LAMB and LARS: a step on a layer needs norms of the whole layer first.

So each tensor is met twice. On a CPU the tensors come one after the other, in blocks, so that both
times the cache has them. On a GPU, and in a compiled step, all go through each operator together.

Where ranks have pieces of a tensor, the squares of all norms are summed in one message, and all
tensors wait for it. What is no piece is a duplicate, the same on all ranks: rank 0's counts.

Bytes sent: an all-reduce of 16 a parameter (a tensor, not a number). Memory: what `direction` gives
for BUCKET elements, or the largest tensor; on a GPU, or with a group, for all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, groupby, islice
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..runtime.group import Group
from .guards import layerwise as guard
from .tensor_parallel import cut_of

# Elements: all tensors of a block stay in the L2 cache; those that a bucket needs again, in L3.
BLOCK, BUCKET = 2**14, 2**18


class Batch(NamedTuple):
    """Some parameters, or a block of one: lists alike in length, for torch's foreach operators.
    `scalars` have no dimension. Half formats are float32 here."""

    x: list[Tensor]
    g: list[Tensor]
    state: list[list[Tensor]]
    scalars: list[list[Tensor]]
    options: dict
    home: list[Tensor]  # the parameters themselves


class Bucket(NamedTuple):
    """Parameters, with the same options, whose norms are known at one time."""

    numbers: list[int]  # in the optimizer
    parameters: list[Tensor]
    blocks: list[int]  # of each parameter
    batches: list[Batch]
    options: dict


class LayerWise(Optimizer):
    """A subclass gives

    state_names                                    its tensors of a parameter's shape
    scalars(steps, options) -> list of vectors     of each parameter, whose updates steps counts
    direction(batch) -> u                          whose norms count; the state moves on
    ratio(x_norm, u_norm, options) -> vector
    apply(batch, u, rates)                         the step on batch.x; rates: ratio times lr
    """

    state_names: tuple[str, ...]
    shrink: Tensor | None = None  # what gradients are divided by

    def __init__(self, params, defaults: dict, group=None,
                 pieces: Callable[[Tensor], bool] | None = None,
                 max_grad_norm: float | None = None):
        guard.refuse_options(defaults | {"max_grad_norm": max_grad_norm})
        self.group, self.pieces = None if group is None else Group.of(group), pieces or is_cut
        self.max_grad_norm = max_grad_norm
        self._ratios: list[tuple[list[Tensor], Tensor]] = []
        super().__init__(params, {"trust_ratio": True} | defaults)

    def among(self, group) -> "LayerWise":
        """This optimizer, for parameters of which the ranks of a group have pieces; one that was
        given a group keeps it."""
        self.group = Group.of(group) if self.group is None else self.group
        return self

    @property
    def trust_ratios(self) -> dict[Tensor, float]:
        """Parameter -> its ratio in the last step."""
        return {p: ratio for parameters, ratios in self._ratios
                for p, ratio in zip(parameters, ratios.tolist())}

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(param_group)
        guard.refuse_options(self.param_groups[-1])
        guard.refuse_parameters(self.param_groups[-1]["params"])

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Update the parameters that have gradients; returns what `closure` returns, if given.
        With a group, all of its ranks call it together."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.max_grad_norm is not None:
            self.shrink = (self._gradient_norm() / self.max_grad_norm).clamp(min=1.0)
        buckets, self._ratios = self._buckets(), []
        for together in [list(buckets)] if self._shared else ([bucket] for bucket in buckets):
            us = [[self.direction(batch) for batch in bucket.batches] for bucket in together]
            for bucket, u, norms in zip(together, us, self._norms(together, us)):
                ratio = torch.ones_like(norms[0])
                if bucket.options["trust_ratio"]:
                    ratio = self.ratio(*norms, bucket.options)
                self._ratios.append((bucket.parameters, ratio))
                rates = spread(ratio * bucket.options["lr"], bucket)
                for batch, own, each in zip(bucket.batches, u, rates):
                    self.apply(batch, own, each)
                    if batch.x is not batch.home:
                        torch._foreach_copy_(batch.home, batch.x)
        return loss

    def load_state_dict(self, state_dict: dict) -> None:
        """As torch's; the state of half parameters stays float32."""
        super().load_state_dict(state_dict)
        numbers = chain.from_iterable(saved["params"] for saved in state_dict["param_groups"])
        parameters = chain.from_iterable(options["params"] for options in self.param_groups)
        for number, p in zip(numbers, parameters):
            for name, value in state_dict["state"].get(number, {}).items():
                dtype = torch.float32 if name == "step" else wide(p.dtype)
                self.state[p][name] = value.detach().to(p.device, dtype, copy=True)

    @property
    def _shared(self) -> bool:
        return self.group is not None and self.group.size > 1

    def _buckets(self) -> Iterator[Bucket]:
        """The parameters that have gradients; their steps are counted."""
        numbers = count()
        for options in self.param_groups:
            learnt = [(n, p) for p, n in zip(options["params"], numbers) if p.grad is not None]
            for (device, dtype), alike in groupby(learnt, lambda one: (one[1].device, one[1].dtype)):
                alike = list(alike)
                states = {p: self._state_of(p) for _, p in alike}
                steps = [state["step"] for state in states.values()]
                torch._foreach_add_(steps, 1)
                vectors = self.scalars(torch.stack(steps).double(), options)
                scalars = dict(zip(states, zip(*(each.to(wide(dtype)).unbind() for each in vectors))))
                blocked = device.type != "cuda" and not torch.compiler.is_compiling()
                block, bucket = (BLOCK, BUCKET) if blocked else (inf, inf)
                for run in runs(alike, [p.numel() for _, p in alike], bucket):
                    yield self._bucket(run, states, scalars, options, block)

    def _bucket(self, run: list, states: dict, scalars: dict, options: dict, block: float) -> Bucket:
        rows, blocks = [], []
        for _, p in run:
            guard.refuse_gradient(p)
            state = [states[p][name] for name in self.state_names]
            rows += (own := [(*row, *scalars[p]) for row in cut([p, p.grad, *state], block)])
            blocks.append(len(own))
        batches = []
        for batch in runs(rows, [row[0].numel() for row in rows], block):
            home, g, *rest = map(list, zip(*batch))
            x, g = in_float(home), in_float(g)
            batches.append(Batch(x, g, rest[:len(state)], rest[len(state):], options, home))
        return Bucket([n for n, _ in run], [p for _, p in run], blocks, batches, options)

    def _state_of(self, p: Tensor) -> dict[str, Tensor]:
        if not (state := self.state[p]):
            state["step"] = torch.zeros((), device=p.device)
            state |= {name: torch.zeros_like(p, dtype=wide(p.dtype)) for name in self.state_names}
        return state

    def _norms(self, together: Sequence[Bucket], us: Sequence) -> list[Tensor]:
        """Of each bucket: the norms of its parameters, and of their u."""
        squares = [torch.stack([squares_of((batch.x for batch in bucket.batches), bucket.blocks),
                                squares_of(u, bucket.blocks)]) for bucket, u in zip(together, us)]
        if self._shared:
            squares = self._summed(squares, [bucket.numbers for bucket in together])
        return [each.sqrt() for each in squares]

    def _gradient_norm(self) -> Tensor:
        """Of all gradients; those of pieces are the group's together."""
        every = [p for options in self.param_groups for p in options["params"]]
        learnt = [(n, p.grad) for n, p in enumerate(every) if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(in_float([g for _, g in learnt])))
        squares = norms.double().square()[None]
        if self._shared:
            (squares,) = self._summed([squares], [[n for n, _ in learnt]])
        return squares.sum().sqrt()

    def _summed(self, squares: list[Tensor], numbers: list[list[int]]) -> list[Tensor]:
        """Over the group, of pieces; of duplicates rank 0's. A parameter without a gradient on this
        rank adds nothing."""
        every = [p for options in self.param_groups for p in options["params"]]
        flat = squares[0].new_zeros(len(squares[0]), len(every))
        flat[:, list(chain(*numbers))] = torch.cat(squares, 1)
        flat *= flat.new_tensor([float(self.group.rank == 0 or self.pieces(p)) for p in every])
        self.group.all_reduce(flat, name="norms of layers")
        return [flat[:, own] for own in numbers]


def spread(vector: Tensor, bucket: Bucket) -> list[list[Tensor]]:
    """A number of each parameter, for each of its blocks, by batches."""
    each = zip(vector.to(bucket.batches[0].x[0].dtype).unbind(), bucket.blocks)
    flat = iter([number for number, blocks in each for _ in range(blocks)])
    return [list(islice(flat, len(batch.x))) for batch in bucket.batches]


def squares_of(batches: Iterable[list[Tensor]], blocks: list[int]) -> Tensor:
    """Of each parameter, in float64: the sum of squares over all its blocks."""
    norms = torch.stack([norm for batch in batches for norm in torch._foreach_norm(batch)])
    squares = norms.double().square()
    if len(blocks) == len(squares):
        return squares
    return torch.stack([own.sum() for own in squares.split(blocks)])


def runs(items: Sequence, sizes: Iterable[int], limit: float) -> Iterator[list]:
    """Consecutive items of at most `limit` together; a larger one is alone."""
    run, total = [], 0
    for item, size in zip(items, sizes):
        if run and total + size > limit:
            yield run
            run, total = [], 0
        run.append(item)
        total += size
    yield run


def cut(tensors: list[Tensor], block: float) -> Iterable[Sequence[Tensor]]:
    """The same blocks of each of these tensors of one shape; a strided one stays whole."""
    if tensors[0].numel() <= block or not all(each.is_contiguous() for each in tensors):
        return [tensors]
    return zip(*(each.view(-1).split(block) for each in tensors))


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.itemsize < 4 else dtype


def in_float(tensors: list[Tensor]) -> list[Tensor]:
    """As they are, unless they are of a half format."""
    return [each.float() for each in tensors] if tensors[0].itemsize < 4 else tensors


def is_cut(parameter: Tensor) -> bool:
    """Whether tensor slicing left this rank a piece of the parameter."""
    return cut_of(parameter) is not None
