"""The compiler of techniques/fusion.py: the fewest bytes, the values of eager, the bytes that were
foretold."""

import random
from math import inf

import pytest
import torch

from bigtrain_lab.techniques.captured_graph import KernelRun
from bigtrain_lab.techniques.fusion import (
    Fusion,
    Operator,
    best_groups,
    moved_bytes,
    operators_of,
)
from bigtrain_lab.techniques.guards.fusion import graph_breaks

# -- groups ----------------------------------------------------------------------------------------


def drawn(seed: int, most: int):
    """A random graph: pointwise operators of two shapes, reductions and views among them."""
    draw = random.Random(seed)
    values = [f"x{i}" for i in range(draw.randint(1, 3))]
    sizes, operators, left = (
        {name: draw.randint(1, 9) for name in values},
        [],
        draw.randint(2, most),
    )
    while left:
        kind, name = draw.choice("pppprv"), f"t{len(operators)}"
        reads = tuple(draw.choice(values[-6:]) for _ in range(draw.randint(1, 3)))
        operators.append(
            Operator(name, reads, draw.choice("aaab"))
            if kind == "p"
            else Operator(name, reads[:1], None, free=kind == "v")
        )
        left -= kind == "p"
        sizes[name] = draw.randint(1, 9)
        values.append(name)
    used = {value for each in operators for value in each.reads}
    return (
        operators,
        sizes,
        [each.name for each in operators if each.name not in used or draw.random() < 0.15],
    )


def partitions(items: list):
    if not items:
        yield []
        return
    first, *rest = items
    for found in partitions(rest):
        yield [[first], *found]
        for i in range(len(found)):
            yield found[:i] + [[first, *found[i]]] + found[i + 1 :]


def can_run(operators, groups) -> bool:
    """Whether some order of the groups has each value made before it is read."""
    home = {each.name: each.name for each in operators} | {
        name: k for k, group in enumerate(groups) for name in group
    }
    needs = {place: set() for place in home.values()}
    for each in operators:
        needs[home[each.name]] |= {home[value] for value in each.reads if value in home} - {
            home[each.name]
        }
    while ready := {place for place, needed in needs.items() if not needed & needs.keys()}:
        needs = {place: needed for place, needed in needs.items() if place not in ready}
    return not needs


def fewest(operators, sizes, outputs) -> int:
    """Of all partitions that can run."""
    space, best = {each.name: each.space for each in operators}, inf
    for groups in partitions([name for name, own in space.items() if own is not None]):
        if all(len({space[name] for name in group}) == 1 for group in groups):
            moved = moved_bytes(operators, sizes, outputs, groups)
            if moved < best and can_run(operators, groups):
                best = moved
    return best


@pytest.mark.parametrize("most, seeds", [(6, range(200)), (8, range(200, 204))])
def test_groups_move_the_fewest_bytes(most, seeds):
    """benchmarks/fusion.py does so with 10 operators."""
    for seed in seeds:
        graph = drawn(seed, most)
        groups = best_groups(*graph)
        assert can_run(graph[0], groups) and moved_bytes(*graph, groups) == fewest(*graph), seed


def test_a_large_graph_takes_a_bounded_search():
    graph = drawn(0, 400)
    assert can_run(graph[0], best_groups(*graph))


# -- values and bytes ------------------------------------------------------------------------------


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


def norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * 1.5 + 0.25


def mixed(x, y, half, whole):
    """Other formats, a row, a column, a scalar tensor, and a value that two operators outside
    read."""
    inside = torch.where(whole > 2, x.float() * half, y) + whole
    return torch.sigmoid(inside) @ torch.exp(-inside.abs()).T, (x > y).to(torch.float16) * half


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


CASES = {
    "gelu": (gelu, lambda: [draw(30, 41)]),
    "gelu in float64": (gelu, lambda: [draw(7, 5, 3, dtype=torch.float64)]),
    "gelu in bfloat16": (gelu, lambda: [draw(40, 40, dtype=torch.bfloat16)]),
    "one element": (gelu, lambda: [draw(1)]),
    "nothing": (gelu, lambda: [draw(0, 4)]),
    "many blocks": (gelu, lambda: [draw(40, 100)]),
    "normalization by hand": (norm, lambda: [draw(12, 33)]),
    "softmax by hand": (
        lambda x: (e := torch.exp(x - x.amax(-1, keepdim=True))) / e.sum(-1, keepdim=True),
        lambda: [draw(9, 65)],
    ),
    "mixed": (
        mixed,
        lambda: [
            draw(6, 8, dtype=torch.float64),
            draw(1, 8),
            draw(6, 1, dtype=torch.float16),
            torch.tensor(3),
        ],
    ),
    "not contiguous": (
        lambda x, y, z: torch.tanh(x.T * y[:, ::2]) + z[::2],
        lambda: [draw(20, 6), draw(6, 40), draw(40)],
    ),
    "permuted": (lambda x: torch.relu(x.permute(2, 0, 1) * 2 - 1).pow(2), lambda: [draw(4, 5, 6)]),
    "random numbers": (
        lambda x: torch.tanh(x * torch.rand_like(x) + 1) * torch.rand_like(x),
        lambda: [draw(30, 5)],
    ),
    "products between": (
        lambda x, w: torch.relu(gelu(x @ w) @ w.T + x).sum(),
        lambda: [draw(8, 8), draw(8, 8, seed=1)],
    ),
    "an operator without out=": (
        lambda x: torch.nn.functional.hardswish(x * 2).masked_fill(x > 1, 0.0) - 1,
        lambda: [draw(10, 10)],
    ),
}


def ulps(a, b) -> float:
    """How far apart two tensors are, in units in the last place of the larger value."""
    assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
    if not a.is_floating_point() or not a.numel():
        return 0.0 if torch.equal(a, b) else inf
    _, exponent = torch.frexp(torch.maximum(a.abs(), b.abs()).double())
    last = torch.finfo(a.dtype).eps * torch.exp2(exponent.double() - 1)
    return ((a.double() - b.double()).abs() / last).max().item()


def called(function, given):
    """Results and gradients, in a list."""
    torch.manual_seed(0)
    given = [
        each.clone().requires_grad_(each.is_floating_point()) for each in given
    ]  # clone keeps strides
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    gradients = torch.autograd.grad(
        sum(each.float().sin().sum() for each in results),
        [each for each in given if each.requires_grad],
        allow_unused=True,
    )
    return [each.detach() for each in (*results, *gradients) if each is not None]


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_eager_and_bytes_as_foretold(name):
    function, inputs = CASES[name]
    torch.compiler.reset()
    backend = Fusion(block=50)  # so that rows, and parts of rows, are blocks
    given = inputs()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for theirs, ours in zip(called(function, given), called(compiled, given), strict=True):
        assert ulps(ours, theirs) <= 2
    assert [each.way for each in backend.compiled] == ["forward", "backward"]
    for each in backend.compiled:
        run = KernelRun(each.graph)
        run.run(
            *(
                torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).fill_(1)
                if isinstance(like, torch.Tensor)
                else like
                for node in each.graph.graph.find_nodes(op="placeholder")
                for like in [node.meta["val"]]
            )
        )
        operators, *values = operators_of(each.graph.graph)
        assert sum(run.bytes) == moved_bytes(operators, *values, [])
        assert len(run.bytes) == sum(not operator.free for operator in operators)


def test_memory_of_a_result_serves_again_only_when_nobody_has_it():
    torch.compiler.reset()
    compiled = torch.compile(gelu, backend=Fusion())
    x = draw(2**19)
    first = compiled(x)
    right, part = first.clone(), first[5:]
    assert compiled(-x).data_ptr() != first.data_ptr() and torch.equal(first, right)
    place = first.data_ptr()
    del first
    assert compiled(-x).data_ptr() != place and torch.equal(part, right[5:])
    del part
    assert compiled(-x).data_ptr() == place


def test_lengths_are_captured_once_more_and_told():
    torch.compiler.reset()
    backend = Fusion(block=64)
    compiled = torch.compile(lambda x, y: torch.tanh(x + y) * x, backend=backend)
    for length in (6, 7, 9, 30):
        given = [draw(length, 5), draw(5)]
        assert all(
            ulps(*pair) <= 2
            for pair in zip(
                called(compiled, given), called(lambda x, y: torch.tanh(x + y) * x, given)
            )
        )
    assert backend.reasons()[1:] == ["the shape of x was 6 x 5 and is any x 5"]


def test_what_cannot_be_one_graph_is_told():
    torch.compiler.reset()

    def decides(x):
        if x.sum() > 0:
            x = x + 1
        return torch.tanh(x)

    (told,) = graph_breaks(decides, draw(4))
    assert (
        "'if x.sum() > 0:', which depends on the values of a tensor" in told
        and "compiled apart" in told
    )
    assert graph_breaks(gelu, draw(4)) == []
