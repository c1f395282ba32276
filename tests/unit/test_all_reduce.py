"""The fast ring: the naive ring's bits on every rank, refused before it hangs."""

from functools import partial

import numpy as np
import pytest
import torch

from bigtrain_lab import Impossible, launch
from bigtrain_lab.order.pipelined_ring import pipelined_ring
from bigtrain_lab.techniques import all_reduce, ring_all_reduce
from bigtrain_lab.techniques.all_reduce import naive_ring_all_reduce

from .threads import on_processes, on_threads

PART_BYTES = 1 << 18


def cases(ranks):
    """(numbers, dtype, op) of each call."""
    return [
        (n, dtype, op)
        for dtype in (
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.int64,
            torch.uint8,
        )
        for op in ("sum", "mean")
        for n in (
            *sorted({0, 1, ranks - 1, ranks, ranks + 1}),
            *([10**6 + 3] * (dtype == torch.float32)),
        )
        if op == "sum" or dtype.is_floating_point
    ]


def given(rank, numbers, dtype):
    values = torch.randn(
        numbers, generator=torch.Generator().manual_seed(rank), dtype=torch.float64
    )
    return values.to(dtype) if dtype.is_floating_point else (10 * values).to(torch.int64).to(dtype)


def naive(tensor, group, op, name):
    naive_ring_all_reduce(tensor, group)
    return tensor.div_(group.size) if op == "mean" else tensor


def reduced(group, ring=ring_all_reduce):
    found = {}
    for number, (numbers, dtype, op) in enumerate(cases(group.size)):
        tensor = given(group.rank, numbers, dtype)
        assert ring(tensor, group, op, f"call {number}") is tensor
        found[f"{number}"] = tensor
    return found


@pytest.mark.parametrize(
    "over, ranks", [(on_threads, 1), (on_threads, 3), (on_threads, 8), (on_processes, 4)]
)
def test_every_rank_has_the_naive_ring_s_bits(over, ranks, monkeypatch):
    """Any size and type. Whole numbers are summed exactly, hence others by the same additions. Its
    bytes and times are proved by the lab data-parallel."""
    monkeypatch.setattr(pipelined_ring.__wrapped__, "__defaults__", (PART_BYTES,))
    monkeypatch.setattr(all_reduce, "ROOM_BYTES", 3 * PART_BYTES)  # a part's room is used again
    expected, *others = on_threads(partial(reduced, ring=naive), ranks)
    for found in [*others, *over(reduced, ranks)]:
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    for number, (numbers, dtype, _) in enumerate(cases(ranks)):
        if not dtype.is_floating_point:
            assert torch.equal(
                expected[f"{number}"],
                torch.stack([given(rank, numbers, dtype) for rank in range(ranks)]).sum(
                    0, dtype=dtype
                ),
            )


@pytest.mark.parametrize("mode", [{"record": False}, {"cost": {}}], ids=["plain", "modelled"])
def test_any_layout_is_reduced_and_what_differs_is_told_to_every_rank(mode, tmp_path):
    def program(rank):
        group, told = rank.group(), []
        rows = torch.arange(24.0).reshape(4, 6) * (rank.index + 1)
        for cut in (
            lambda x: x.T,
            lambda x: x[:, ::2],
            lambda x: x[1:, 1:],
            lambda x: x[1, 1],
            torch.Tensor.requires_grad_,
            torch._neg_view,  # as an imaginary part of a conjugate is
        ):
            whole = rows.clone()
            tensor = cut(whole)
            assert ring_all_reduce(tensor, group) is tensor
            assert (
                torch.equal(tensor.detach(), cut(rows / (rank.index + 1) * 6))
                and whole.detach().eq(rows).sum() == whole.numel() - tensor.count_nonzero()
            )
        odd = rank.index == 1
        for wrong in (
            (torch.ones(5 + odd),),
            (torch.ones(1, dtype=torch.float16 if odd else torch.float32),),
            (torch.ones(1), "mean" if odd else "sum"),
            (torch.ones(0 if odd else 7), "sum"),
            (torch.ones(2), "sum", f"bucket {int(odd)}"),
        ):
            with pytest.raises(Impossible) as refused:
                ring_all_reduce(wrong[0], group, *wrong[1:])
            told.append(str(refused.value))
        group.barrier()
        assert torch.equal(
            ring_all_reduce(torch.ones(5), group), torch.full((5,), 3.0)
        )  # nothing of the refused calls is left
        return {f"{rank.index}": np.array(told)}

    found = launch(program, 3, directory=tmp_path / "run", **mode).result
    assert found["0"].tolist() == found["1"].tolist() == found["2"].tolist()
    for sentence, (most, odd) in zip(
        found["0"],
        (
            ("sum of float32 of shape (5,)", "sum of float32 of shape (6,)"),
            ("sum of float32 of shape (1,)", "sum of float16 of shape (1,)"),
            ("sum of float32 of shape (1,)", "mean of float32 of shape (1,)"),
            ("sum of float32 of shape (7,)", "sum of float32 of shape (0,)"),
            ("in bucket 0", "in bucket 1"),
        ),
        strict=True,
    ):
        others, rest = str(sentence).split("; rank 1: ")
        assert "ranks 0 and 2: " in others and most in others and odd in rest


@pytest.mark.parametrize(
    "tensor, op, told",
    [
        (torch.ones(3), "max", "There is no ring all-reduce by 'max': choose sum or mean."),
        (
            torch.ones(3, dtype=torch.int64),
            "mean",
            "The mean of int64 is no whole number: all-reduce by sum, or convert to float.",
        ),
        (
            torch.ones(3, dtype=torch.bool),
            "sum",
            "bool has no addition: convert the tensor to a type that has one, such as float32.",
        ),
        (
            torch.ones(3).to(torch.float8_e5m2),
            "sum",
            "float8_e5m2 has no addition: convert the tensor",
        ),
        (
            torch.ones(3).to_sparse(),
            "sum",
            "The tensor is torch.sparse_coo: all-reduce a dense one",
        ),
    ],
)
def test_what_has_no_sum_or_mean_is_refused(tensor, op, told):
    from bigtrain_lab.runtime.talk.group import Alone

    with pytest.raises(Impossible, match="^" + told.replace("(", r"\(").replace(")", r"\)")):
        ring_all_reduce(tensor, Alone(), op)
