"""What cannot be reduced over ranks, or would hang them: refused in one sentence."""

import torch
from torch import Tensor

from ...runtime.talk.group import Group
from ...runtime.talk.message import DTYPES
from . import by_ranks, refuse as refuse_any


def refuse(tensor: Tensor, op: str) -> None:
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    dtype, eighth = str(tensor.dtype).removeprefix("torch."), not whole and tensor.itemsize == 1
    refuse_any(
        (op not in ("sum", "mean"), f"There is no ring all-reduce by {op!r}: choose sum or mean."),
        (
            tensor.layout != torch.strided,
            f"The tensor is {tensor.layout}: all-reduce a dense one, such as tensor.to_dense().",
        ),
        (
            tensor.dtype == torch.bool or tensor.dtype not in DTYPES or eighth,
            f"{dtype} has no addition: convert the tensor to a type that has one, such as float32.",
        ),
        (
            op == "mean" and whole,
            f"The mean of {dtype} is no whole number: all-reduce by sum, or convert to float.",
        ),
    )


def refuse_different(group: Group, texts: list[str]) -> None:
    refuse_any(
        (
            texts,
            f"The ranks all-reduce different tensors: {by_ranks(group, texts)}; give "
            "the same shape, dtype, op and name on every rank.",
        )
    )
