"""What is wrong with an operator policy of one's own: the mistake, then the mend.

For each type it is asked for the types of what operators return, and for values that one type alone can hold: 2,049 - 2,048 is 0
in 16 bits, 300^2 is inf in fp16. What must be in float32 must equal the operator on float32 numbers, so that what was computed in
16 bits and widened after is found too. Graphs, float64, ids and the end of the with block are looked at.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from .findings import Wrong, first_finding

CLOSE = 1e-5
# Looked up when called, as a policy may stand in their place.
PRODUCTS = {"x @ y": lambda x, y: x @ y, "torch.mm": lambda x, y: torch.mm(x, y), "torch.bmm": lambda x, y: torch.bmm(x[None], y[None]),
            "torch.matmul": lambda x, y: torch.matmul(x, y), "torch.einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
            "F.linear": lambda x, y: F.linear(x, y), "F.linear with bias=": lambda x, y: F.linear(x, y, bias=y[0]),
            "F.conv1d": lambda x, y: F.conv1d(x[None], y[None]), "F.conv2d": lambda x, y: F.conv2d(x[None, None], y[None, None])}
RANGE = "exp above 11.09 is inf in fp16, and so is 300^2: exp, logarithms, powers and softmax in float32."
SUMS = "the largest number of fp16 is 65,504, so a sum of 70,000 ones is inf, and in bf16 it stalls at 256: sums, means and norms in float32."
TERMS = "it sums many terms, so compute it in float32."
DELICATE = {
    RANGE: {"x.exp()": lambda x: x.exp(), "torch.exp": lambda x: torch.exp(x), "F.softmax": lambda x: F.softmax(x, -1), "x.softmax": lambda x: x.softmax(-1),
            "torch.softmax": lambda x: torch.softmax(x, -1), "F.log_softmax": lambda x: F.log_softmax(x, -1),
            "torch.log": lambda x: torch.log(x), "x.log()": lambda x: x.log(), "x ** 2": lambda x: x**2, "torch.pow": lambda x: torch.pow(x, 2)},
    SUMS: {"x.sum()": lambda x: x.sum(), "torch.sum": lambda x: torch.sum(x), "x.mean()": lambda x: x.mean(), "torch.mean": lambda x: torch.mean(x),
           "x.norm()": lambda x: x.norm()},
    TERMS: {"F.layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "F.cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x))),
            "F.mse_loss": lambda x: F.mse_loss(x, torch.zeros_like(x))}}
OTHERS = {"x + y": lambda x, y: x + y, "x * y": lambda x, y: x * y, "x / y": lambda x, y: x / y, "torch.tanh": lambda x, y: torch.tanh(x),
          "F.relu": lambda x, y: F.relu(x), "F.gelu": lambda x, y: F.gelu(x)}


def policy_findings(make: Callable[[torch.dtype], AbstractContextManager]) -> list[str]:
    """Sentences about `make(dtype)`, for float16 and bfloat16: a context in which products of matrices are in that type and the
    rest is as safe as it was; empty when right."""
    checks = (partial(check, make, dtype) for dtype in (torch.float16, torch.bfloat16) for check in (products, delicate, others, ended))
    return first_finding(checks, "Under your policy torch", "Cast floating tensors only, and all of an operator's to one type, keywords too.")


def word(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def pair(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of 2,049 - 2,048, which are 1 in float32 and 0 in 16 bits, and ones."""
    return torch.tensor([2049.0, -2048.0, 0.0, 0.0]).expand(4, 4).to(dtype).requires_grad_(), torch.ones(4, 4, dtype=dtype, requires_grad=True)


def products(make: Callable, dtype: torch.dtype) -> None:
    for name, product in PRODUCTS.items():
        for x, y in (pair(torch.float32), (pair(dtype)[0], pair(torch.float32)[1])):
            expected = product(*(each.detach().to(dtype) for each in (x, y)))
            with make(dtype):
                found = product(x, y)
            if found.dtype == torch.float32:
                raise Wrong(f"A product of float32 matrices, {name}, stayed in float32: nothing is gained. Cast both to {word(dtype)} first.")
            if found.dtype != dtype:
                raise Wrong(f"{name} came out in {word(found.dtype)} under a policy of {word(dtype)}: cast to the type that you are given.")
            if not found.requires_grad:
                raise Wrong(f"{name} lost its graph: cast with .to(), which autograd records, not with .data, .detach() or a new tensor.")
            if not found.equal(expected):
                raise Wrong(f"{name} was computed in float32 and rounded after: nothing is gained. Cast what goes in.")
        with make(dtype):
            double = product(*pair(torch.float64)).dtype
        if double != torch.float64:
            raise Wrong(f"{name} of float64 matrices came out in {word(double)}: leave float64 alone, who chose it wants its digits.")


def delicate(make: Callable, dtype: torch.dtype) -> None:
    x = torch.linspace(1, 300.3, 1024).view(4, -1).to(dtype).requires_grad_()
    for reason, operators in DELICATE.items():
        for name, operator in operators.items():
            expected = operator(x.detach().float())
            with make(dtype):
                found, double = operator(x), operator(x.detach()[:, :4].double()).dtype
            if found.dtype != torch.float32 or not close(found.detach().double(), expected.double()):
                raise Wrong(f"{name} of {word(dtype)} numbers came out in {word(found.dtype)}{', computed in 16 bits' * (found.dtype == torch.float32)}: {reason}")
            if not found.requires_grad:
                raise Wrong(f"{name} lost its graph: cast with .to(), which autograd records, not with .data, .detach() or a new tensor.")
            if double != torch.float64:
                raise Wrong(f"{name} of float64 numbers came out in {word(double)}: leave float64 alone, who chose it wants its digits.")


def close(a: Tensor, b: Tensor) -> bool:
    """Float32 sums in another order are off by some 1e-6 of their norm, and 16 bits by 2^-12 or more; inf where the other is."""
    fits = b.isfinite()
    return a.isfinite().equal(fits) and bool((a - b)[fits].norm() <= CLOSE * b[fits].norm())


def others(make: Callable, dtype: torch.dtype) -> None:
    half, full = torch.full((4,), 300, dtype=dtype), torch.full((4,), 300.0)
    with make(dtype):
        kept = {name: operator(full, full).dtype for name, operator in OTHERS.items()}
        mixed = {name: OTHERS[name](half, full).dtype for name in ("x + y", "x * y")}
        whole = torch.tensor([2049]).sum().dtype, torch.tensor([True]).sum().dtype, (torch.tensor([[2049]]) @ torch.tensor([[2]])).dtype
        row = F.embedding(torch.tensor([3]), torch.ones(4, 4)).dtype
    if wrong := {name: found for name, found in (kept | {"F.embedding": row}).items() if found != torch.float32}:
        name, found = next(iter(wrong.items()))
        raise Wrong(f"{name} of float32 numbers came out in {word(found)}: products of matrices alone are rounded, since 300 times 300 is inf in fp16.")
    if wrong := {name: found for name, found in mixed.items() if found != torch.float32}:
        name, found = next(iter(wrong.items()))
        raise Wrong(f"{name} of {word(dtype)} and float32 came out in {word(found)}: take the widest type of an operator's tensors.")
    if whole != (torch.int64,) * 3:
        raise Wrong("Ids were cast: 2,049 and every odd number above it are not in fp16. Leave integers and bools alone.")


def ended(make: Callable, dtype: torch.dtype) -> None:
    """After a block that ran to its end, and after one that raised."""
    x, y = pair(torch.float32)
    for fails in (False, True):
        reached = False
        try:
            with make(dtype):
                if fails:
                    raise Wrong
            reached = True
        except Wrong:
            pass
        if fails and reached:
            raise Wrong("An error inside the with block was swallowed: return nothing from __exit__.")
        if (x @ y).dtype != torch.float32 or F.linear(x, y).dtype != torch.float32 or y.to(dtype).exp().dtype != dtype:
            raise Wrong("After the with block the policy is still in force: undo in __exit__, or in finally, what __enter__ did, also after an error.")
