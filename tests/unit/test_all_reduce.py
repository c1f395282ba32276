"""The fast ring: right to the rounding of its additions, on the clock that its own order predicts,
refused before it hangs."""

from itertools import chain

import numpy as np
import pytest
import torch

from bigtrain_lab.core import Cost, Impossible, Link
from bigtrain_lab.order.pipelined_ring import pipelined_ring
from bigtrain_lab.order.plan import Plan
from bigtrain_lab.order.simulate import simulate
from bigtrain_lab.runtime import launch
from bigtrain_lab.techniques import all_reduce
from bigtrain_lab.techniques.all_reduce import ring_all_reduce

from .test_group import lanes_of

DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8
LARGE = 10**6 + 3
PART_BYTES = 1 << 18


def cases(ranks):
    """(numbers, dtype, op) of each call."""
    sizes = sorted({0, 1, ranks - 1, ranks, ranks + 1})
    return [
        (n, dtype, op)
        for dtype in DTYPES
        for op in ("sum", "mean")
        for n in (*sizes, *([LARGE] * (dtype == torch.float32)))
        if op == "sum" or dtype.is_floating_point
    ]


def given(rank, numbers, dtype):
    values = torch.randn(
        numbers, generator=torch.Generator().manual_seed(rank), dtype=torch.float64
    )
    return values.to(dtype) if dtype.is_floating_point else (10 * values).to(torch.int64).to(dtype)


@pytest.mark.parametrize(
    "ranks, recorded", [(1, True), (2, True), (3, True), (8, True), (4, False)]
)
def test_the_sum_is_right_on_every_rank_at_the_predicted_time(ranks, recorded, tmp_path):
    """Any size and type, within (N-1) u sum |x| (integers exactly); all ranks to the bit; bytes and
    times as planned."""

    def program(rank):
        pipelined_ring.__wrapped__.__defaults__ = (PART_BYTES,)
        all_reduce.ROOM_BYTES = 3 * PART_BYTES  # so that a part's room is used again
        found = {}
        for number, (numbers, dtype, op) in enumerate(cases(rank.size)):
            tensor = given(rank.index, numbers, dtype)
            assert ring_all_reduce(tensor, rank.group(), op, f"call {number}") is tensor
            found[f"{number} on {rank.index}"] = tensor.view(torch.uint8)
        return found

    cost = Cost(
        {"F": 1}, links={(a, b): Link(100 + a, 7, 3) for a in range(ranks) for b in range(ranks)}
    )
    run = launch(
        program,
        ranks,
        directory=tmp_path / "run",
        **{"cost": cost} if recorded else {"record": False},
    )
    trace, found = run.wait(), run.result
    for number, (numbers, dtype, op) in enumerate(cases(ranks)):
        every = [found[f"{number} on {rank}"] for rank in range(ranks)]
        assert all((every[0] == each).all() for each in every)
        reduced = torch.empty(numbers, dtype=dtype)
        reduced.view(torch.uint8).copy_(torch.from_numpy(every[0]))
        addends = torch.stack([given(rank, numbers, dtype) for rank in range(ranks)])
        if not dtype.is_floating_point:
            assert torch.equal(reduced, addends.sum(0, dtype=dtype))
            continue
        share, unit = ranks if op == "mean" else 1, torch.finfo(dtype).eps / 2
        bound = (ranks - 1) * addends.abs().sum(0, dtype=torch.float64) * unit / share + (
            op == "mean"
        ) * (unit * reduced.abs().double() + torch.finfo(dtype).smallest_normal)
        assert (
            (reduced.double() - addends.sum(0, dtype=torch.float64) / share).abs() <= bound * 1.01
        ).all(), (numbers, dtype, op)
    if not recorded:
        return
    order = {
        rank: tuple(
            part.op
            for number, (numbers, dtype, op) in enumerate(cases(ranks))
            if ranks > 1
            for part in chain(
                *pipelined_ring(rank, ranks, numbers, dtype.itemsize, f"call {number}", PART_BYTES)
            )
        )
        for rank in range(ranks)
    }
    assert lanes_of(trace) == lanes_of(
        simulate(Plan({(rank, "compute"): ops for rank, ops in order.items()}, ranks), cost)
    )
    total = sum(numbers * dtype.itemsize for numbers, dtype, _ in cases(ranks))
    assert sum(trace.bytes_sent(rank) for rank in range(ranks)) == 2 * (ranks - 1) * total
    assert ranks in (1, 8) or any(" part 1" in transfer.name for transfer in trace.transfers())


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
