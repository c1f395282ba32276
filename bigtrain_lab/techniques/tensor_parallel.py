"""Tensor slicing: each matrix of a layer lies on several devices, and a pair of them needs one sum.

    Y = gelu(X A) B = sum_r gelu(X A_r) B_r      A is cut by columns, B by rows; rank r has A_r, B_r

    X --f--> X A_0 -> gelu -> (.) B_0 --g--> Y   f copies, and sums X's gradients in the backward
     `--f--> X A_1 -> gelu -> (.) B_1 --g--'     g sums, and copies Y's gradient in the backward

gelu(a) + gelu(b) is not gelu(a + b): so A is cut where each rank has whole sums of X A. The other
way round, rows then columns, the sums are needed before gelu, and Y must be gathered.

Cost a pair: an all-reduce of Y's values in the forward and one of X's in the backward, which
nothing hides. Memory: 1/t of the weights, gradients, optimizer state and of what gelu saves, on t
ranks; X and Y are whole on each.
Source: Shoeybi et al. 2019, Megatron-LM (arXiv:1909.08053), section 3.
"""

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..runtime.talk.group import Group
from .guards import tensor_parallel as guard
from .guards.gone import as_piece
from .shards import COPIES, CUTS
from .weight_shapes import Cut

# -- what crosses the ranks: each is the transpose of another -------------------------------------
#
#                     forward            backward
#   copy_to_slices    same               summed        Megatron's f
#   sum_of_slices     summed             same          Megatron's g
#   gather_slices     gathered           own part
#   split_to_slices   own part           gathered


def copy_to_slices(x: Tensor, group=None, name: str = "copy") -> Tensor:
    """Return x, which all ranks have. In the backward its gradient is the sum of the ranks'."""
    return crossing(x, group, name, same, summed)


def sum_of_slices(x: Tensor, group=None, name: str = "sum") -> Tensor:
    """Return the sum of the ranks' x. In the backward the gradient goes to all as it is."""
    return crossing(x, group, name, summed, same)


def gather_slices(x: Tensor, group=None, name: str = "gather", dim: int = -1) -> Tensor:
    """Join the ranks' x. In the backward each takes its part of the gradient, which all have."""
    return crossing(x, group, name, partial(gathered, dim=dim), partial(own_part, dim=dim))


def split_to_slices(x: Tensor, group=None, name: str = "split", dim: int = -1) -> Tensor:
    """Return this rank's part of x, which all ranks have. The backward joins the gradients."""
    return crossing(x, group, name, partial(own_part, dim=dim), partial(gathered, dim=dim))


def crossing(x: Tensor, group, name: str, there: Callable, back: Callable) -> Tensor:
    """Call there(x, group, name) in the forward, back(gradient, group, name) in the backward."""
    group = Group.of(group)
    if group.size == 1:
        return x
    return _Crossing.apply(
        x,
        partial(there, group=group, name=f"{name} forward"),
        partial(back, group=group, name=f"{name} backward"),
    )


class _Crossing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, there, back):
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx, dy):
        return _Crossing.apply(dy, ctx.back, ctx.there), None, None


def same(x: Tensor, group: Group, name: str) -> Tensor:
    return x.view_as(x)


def summed(x: Tensor, group: Group, name: str) -> Tensor:
    return group.all_reduce(x.clone(memory_format=torch.contiguous_format), name=name)


def own_part(x: Tensor, group: Group, name: str, dim: int) -> Tensor:
    guard.refuse_uneven(name, x.shape[dim], group.size)
    return x.chunk(group.size, dim)[group.rank].clone(memory_format=torch.contiguous_format)


def gathered(x: Tensor, group: Group, name: str, dim: int) -> Tensor:
    return torch.cat(group.all_gather(x.contiguous(), name=name).chunk(group.size), dim)


# -- layers ---------------------------------------------------------------------------------------


class Sliced(nn.Module):
    """Base of the layers. CUTS knows how a parameter is cut, so that none may take its place."""

    def __init__(self):
        super().__init__()
        self.register_load_state_dict_pre_hook(guard.refuse_assign)

    def _draw(
        self,
        out_features: int,
        in_features: int,
        bias: bool,
        seed: int | None,
        cut: Cut | None = None,
        bias_cut: Cut | None = None,
    ) -> None:
        """Draw a Linear's weight and bias, of which each rank has the part of a cut; None: all."""
        fill, seed = uniform(in_features), common(seed, self.group)
        self.weight = drawn((out_features, in_features), cut, self.group, fill, seed, "weight")
        self.bias = (
            drawn((out_features,), bias_cut, self.group, fill, seed, "bias") if bias else None
        )


class ColumnParallelLinear(Sliced):
    """x -> f(x) W_r^T + b_r: this rank's part of the outputs.

    x has all `in_features` and is the same on all ranks. `.weight` is (out_features / t,
    in_features), since torch keeps W transposed. `drawn` draws the values from `seed`.
    `product` computes f(x) W_r^T + b_r. Its result goes through `leave`: gather_slices joins all.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group=None,
        bias: bool = True,
        *,
        seed: int | None = None,
        name: str = "column",
    ):
        super().__init__()
        self.group, self.name, self.product, self.leave = Group.of(group), name, product, None
        guard.refuse_uneven(f"{name}: out_features", out_features, self.group.size)
        self._draw(out_features, in_features, bias, seed, Cut(0), Cut(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x, self.weight, self.bias, self.group, self.name)
        return self.leave(y, self.group, self.name) if self.leave else y


def product(x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, name: str) -> Tensor:
    """Compute f(x) W^T + b."""
    return F.linear(copy_to_slices(in_format(x, weight), group, name), weight, bias)


def in_format(x: Tensor, weight: Tensor) -> Tensor:
    """Cast x to the format of half weights: half the bytes travel."""
    return x.to(weight.dtype) if weight.itemsize == 2 else x


class RowParallelLinear(Sliced):
    """x_r -> g(x_r W_r^T) + b: the whole result, on each rank.

    x_r is this rank's part of the `in_features`, as a ColumnParallelLinear leaves it. `.weight` is
    (out_features, in_features / t); `.bias` is whole on each rank, and added once, after the sum.
    With split_to_slices as `enter` it takes a whole x.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        group=None,
        bias: bool = True,
        *,
        seed: int | None = None,
        name: str = "row",
    ):
        super().__init__()
        self.group, self.name, self.enter, self.leave = Group.of(group), name, None, sum_of_slices
        guard.refuse_uneven(f"{name}: in_features", in_features, self.group.size)
        self._draw(out_features, in_features, bias, seed, Cut(1))

    def forward(self, x: Tensor) -> Tensor:
        x = in_format(x, self.weight)
        x = self.enter(x, self.group, self.name) if self.enter else x
        y = self.leave(F.linear(x, self.weight), self.group, self.name)
        return y if self.bias is None else y + self.bias


class SharedHeadsLinear(Sliced):
    """x -> keys and values of the head that this rank shares with others; `heads` are fewer than t.

    The parameters are whole on each rank, 2 `heads` blocks of rows. f sums their gradients over the
    ranks, unless `share` is None and sum_duplicates does.
    """

    def __init__(
        self,
        heads: int,
        in_features: int,
        out_features: int,
        group=None,
        bias: bool = True,
        *,
        seed: int | None = None,
        name: str = "shared heads",
    ):
        super().__init__()
        self.group, self.name, self.heads = Group.of(group), name, heads
        self.product, self.leave, self.share = product, None, copy_to_slices
        self._draw(out_features, in_features, bias, seed)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.own("bias")
        return self.product(x, self.own("weight"), bias, self.group, self.name)

    def own(self, field: str) -> Tensor:
        """Return the rows of this rank's head."""
        whole, head = getattr(self, field), self.group.rank * self.heads // self.group.size
        whole = self.share(whole, self.group, f"{self.name}.{field}") if self.share else whole
        return Cut(0, 2).part(whole, head, self.heads)


class VocabParallelEmbedding(Sliced):
    """ids -> rows of a table, of which each rank has the next num_embeddings / t.

    A rank looks its own ids up and has zeros for the others; g sums. The backward is local.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        group=None,
        *,
        seed: int | None = None,
        name: str = "embedding",
    ):
        super().__init__()
        self.group, self.name, self.leave = Group.of(group), name, sum_of_slices
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        guard.refuse_uneven(f"{name}: num_embeddings", num_embeddings, self.group.size)
        shape, seed = (num_embeddings, embedding_dim), common(seed, self.group)
        self.weight = drawn(shape, Cut(0), self.group, nn.init.normal_, seed, "weight")

    def forward(self, ids: Tensor) -> Tensor:
        guard.refuse_outside(self.name, ids, self.num_embeddings)
        own, mine = own_ids(ids, len(self.weight), self.group)
        rows = F.embedding(own, self.weight).masked_fill_(~mine.unsqueeze(-1), 0)
        return self.leave(rows, self.group, self.name)


def own_ids(ids: Tensor, rows: int, group: Group) -> tuple[Tensor, Tensor]:
    """Return the ids' places in this rank's rows, and whether each is there; else any place."""
    own = ids - group.rank * rows
    mine = (own >= 0) & (own < rows)
    return own.clamp_(0, rows - 1), mine


# -- the loss -------------------------------------------------------------------------------------


def vocab_parallel_cross_entropy(
    logits_shard: Tensor,
    targets: Tensor,
    group=None,
    ignore_index: int = -100,
) -> Tensor:
    """Compute torch's cross_entropy, the mean over the targets that count, of logits of which each
    rank has the next V/t columns: (..., V/t) and (...).

        loss = log sum_v exp(z_v - m) - (z_target - m),   m = max_v z_v

    Three all-reduces of one value a target: m, z_target, and the sum of exponentials. No rank has a
    whole row of V logits.
    """
    group = Group.of(group)
    guard.refuse_outside(
        "The cross-entropy's targets", targets, logits_shard.shape[-1] * group.size, ignore_index
    )
    return _CrossEntropy.apply(logits_shard, targets, group, ignore_index)


class _CrossEntropy(torch.autograd.Function):
    """Shapes: N targets of any dimensions, V the columns of this rank."""

    @staticmethod
    def forward(ctx, logits_NV, targets_N, group, ignore_index):
        z_NV = logits_NV.float() if logits_NV.itemsize < 4 else logits_NV
        highest_N = group.all_reduce(z_NV.amax(-1), "max", "cross-entropy: maximum")
        z_NV = z_NV - highest_N.unsqueeze(-1)
        at_N, mine_N = own_ids(targets_N, z_NV.shape[-1], group)
        found = z_NV.gather(-1, at_N.unsqueeze(-1)).squeeze(-1).masked_fill_(~mine_N, 0)
        found = group.all_reduce(found, name="cross-entropy: target's logit")
        p_NV = z_NV.exp_()
        total_N = group.all_reduce(p_NV.sum(-1), name="cross-entropy: sum of exponentials")
        p_NV.div_(total_N.unsqueeze(-1))
        loss_N = total_N.log() - found
        kept_N = targets_N != ignore_index
        ctx.save_for_backward(p_NV, at_N, mine_N & kept_N, kept_N)
        ctx.dtype = logits_NV.dtype
        return loss_N.masked_fill_(~kept_N, 0).sum() / kept_N.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        """softmax - [v is the target], over the targets' number."""
        p_NV, at_N, mine_N, kept_N = ctx.saved_tensors
        share_N = (dloss / kept_N.sum()).expand(kept_N.shape).masked_fill(~kept_N, 0)
        dz_NV = p_NV * share_N.unsqueeze(-1)
        target_N = -share_N * mine_N
        dz_NV.scatter_add_(-1, at_N.unsqueeze(-1), target_N.unsqueeze(-1))
        return dz_NV.to(ctx.dtype), None, None, None


# -- parts of a parameter, and their first values -------------------------------------------------

ROWS = 64  # of a block that one generator draws


def cut_of(parameter: Tensor) -> Cut | None:
    """Return how a parameter is cut; None of a duplicate, equal on all ranks, or of one rank."""
    return CUTS.get(parameter)


def cut_parameter(own: Tensor, cut: Cut | None, group: Group) -> nn.Parameter:
    parameter = own if isinstance(own, nn.Parameter) else nn.Parameter(own)
    CUTS[parameter] = cut if group.size > 1 else None
    if CUTS[parameter] and parameter.requires_grad:
        parameter.register_post_accumulate_grad_hook(as_piece)
    if cut is None and group.rank > 0:
        COPIES[parameter] = True
    return parameter


def drawn(
    shape: tuple[int, ...], cut: Cut | None, group: Group, fill: Callable, seed: int, name: str
) -> nn.Parameter:
    """Draw this rank's part of a parameter whose first values do not depend on the number of ranks.

    Each ROWS rows of the whole have a generator of their own, seeded by (seed, name, number of the
    block). A rank draws the blocks that its part touches and keeps its part of each: no rank has
    the whole. fill(tensor, generator=) draws, in the default dtype; on meta nothing is drawn.
    """
    rows, own_rows = shape[0], range(shape[0])
    each_block = rows if torch.empty(0).is_meta else ROWS  # on meta one block is enough
    if cut == Cut(0):
        own_rows = range(rows * group.rank // group.size, rows * (group.rank + 1) // group.size)
    parts = []
    first = own_rows.start // each_block * each_block
    for start in range(first, own_rows.stop, each_block):
        block = torch.empty(min(each_block, rows - start), *shape[1:])
        if not block.is_meta:
            each = random.Random(f"{seed} {name} {start // ROWS}").getrandbits(63)
            fill(block, generator=torch.Generator(block.device).manual_seed(each))
        block = block[max(own_rows.start - start, 0) : own_rows.stop - start]
        parts.append(block if cut in (None, Cut(0)) else cut.part(block, group.rank, group.size))
    return cut_parameter(torch.cat(parts), cut, group)


def uniform(in_features: int) -> Callable:
    """nn.Linear's: between -1 / sqrt(in_features) and that."""
    return partial(nn.init.uniform_, a=-(in_features**-0.5), b=in_features**-0.5)


def common(seed: int | None, group: Group) -> int:
    """The seed of a layer; without one a number of rank 0's default generator, for all ranks."""
    if seed is None:
        number = torch.randint(2**62, ())
        seed = 0 if number.is_meta else group.broadcast(number, name="seed of a layer").item()
    return seed
