"""One equation under any layout: outputs and gradients of one process, and the bytes that the names
of its dimensions say."""

import random

import pytest
import torch

from bigtrain_lab import Impossible, Mesh, launch
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques.mesh_tensor import collectives, einsum, laid_out, terms

EQUATIONS = (
    "n d, d f -> n f",
    "b s d, d h k -> b h s k",
    "b h s k, b h t k -> b h s t",
    "a b, b c, c d -> d a",
    "n d -> n",
    "n d -> d n",
    "n f, n f ->",
    "a b, c -> a",
    "n d, e d -> n e",
)
MESHES = {4: (Mesh(dp=4), Mesh(dp=2, tp=2)), 8: (Mesh(tp=8), Mesh(dp=4, tp=2), Mesh(x=2, y=2, z=2))}
CASES = 18  # of a run


def case(ranks: int, number: int):
    """(equation, sizes, layout, mesh, another layout of the result), drawn."""
    draw = random.Random(100 * ranks + number)
    mesh, equation = draw.choice(MESHES[ranks]), EQUATIONS[number % len(EQUATIONS)]
    dims = list(dict.fromkeys(dim for each in terms(equation) for dim in each))

    def layout(dims):
        axes = [axis for axis, _ in mesh.axes if draw.random() < 0.9]
        return dict(zip(draw.sample(dims, min(len(dims), len(axes))), axes))

    return (
        equation,
        {dim: ranks * draw.randint(1, 3) for dim in dims},
        layout(dims),
        mesh,
        layout(list(terms(equation)[-1])),
    )


def values(equation: str, sizes: dict) -> list[torch.Tensor]:
    """The inputs, which need gradients, and the gradient of the result."""
    draw = torch.Generator().manual_seed(len(equation) + sum(sizes.values()))
    return [
        torch.randn(
            [sizes[dim] for dim in dims], generator=draw, dtype=torch.float64
        ).requires_grad_(dims is not terms(equation)[-1])
        for dims in terms(equation)
    ]


def learnt(result, inputs, of_result) -> list:
    (result * of_result.detach()).sum().backward()
    return [result.detach().numpy(), *(each.grad.numpy() for each in inputs)]


def called(number: int) -> list[str]:
    return [
        f"{what} of {number}." for what in ("the result", "gradient 0", "gradient 1", "gradient 2")
    ]


def program(rank):
    shown = {}
    for number in range(CASES):
        equation, sizes, layout, mesh, other = case(rank.size, number)
        groups = {axis: rank.among(mesh.peers(rank.index, axis)) for axis, _ in mesh.axes}
        *inputs, of_result = values(equation, sizes)
        *named, result = (" ".join(dims) for dims in terms(equation))
        parts = [laid_out(each, dims, {}, layout, groups) for each, dims in zip(inputs, named)]
        kept = [part.detach().clone() for part in parts]
        made = einsum(
            equation, *parts, layout=layout | {"another": "dp"}, groups=groups, names=called(number)
        )
        assert all(map(torch.equal, parts, kept)) and made.is_contiguous()
        made = laid_out(made, result, layout, other, groups)
        for at, array in enumerate(
            learnt(laid_out(made, result, other, {}, groups), inputs, of_result)
        ):
            shown[f"{number}.{at}"] = array
    return shown


def letters(equation: str) -> str:
    names = {
        dim: chr(97 + at)
        for at, dim in enumerate(dict.fromkeys(dim for each in terms(equation) for dim in each))
    }
    *inputs, result = ("".join(map(names.get, dims)) for dims in terms(equation))
    return ",".join(inputs) + "->" + result


@pytest.mark.parametrize("ranks", MESHES)
def test_any_layout_computes_what_one_process_does_and_sends_what_its_names_say(ranks):
    run = launch(program, ranks, cost={"F": 1})
    trace, cut = run.wait(), 0
    assert run.replicas == []
    for number in range(CASES):
        equation, sizes, layout, mesh, _ = case(ranks, number)
        *inputs, of_result = values(equation, sizes)
        for at, right in enumerate(
            learnt(torch.einsum(letters(equation), *inputs), inputs, of_result)
        ):
            off = torch.tensor(run.result[f"{number}.{at}"] - right)
            assert torch.linalg.vector_norm(off) <= 1e-12 * torch.linalg.vector_norm(
                torch.tensor(right)
            ), (number, equation, layout)
        needed = collectives(equation, sizes, layout, dict(mesh.axes), 8, called(number))
        cut += len(needed)
        for rank in range(ranks):
            sent = [(t.name, t.bytes) for t in trace.transfers(rank) if f" of {number}. " in t.name]
            assert sorted(sent) == sorted((each.name, each.sent_bytes) for each in needed)
    assert cut > CASES


LINE, SIZES = "n d, d f -> n f", {"n": 4096, "d": 1024, "f": 4096}


@pytest.mark.parametrize(
    "layout, axes, summed",
    [
        ({"n": "x"}, {"x": 4}, {"gradient 1": 2 * 3 / 4 * 4 * 1024 * 4096}),
        ({"f": "x"}, {"x": 4}, {"gradient 0": 2 * 3 / 4 * 4 * 4096 * 1024}),
        ({"d": "x"}, {"x": 4}, {"the result": 2 * 3 / 4 * 4 * 4096 * 4096}),
        (
            {"n": "x", "f": "y"},
            {"x": 2, "y": 2},
            {"gradient 0": 4 * 2048 * 1024, "gradient 1": 4 * 1024 * 2048},
        ),
        (
            {"n": "x", "d": "y"},
            {"x": 2, "y": 2},
            {"the result": 4 * 2048 * 4096, "gradient 1": 4 * 512 * 4096},
        ),
        ({}, {"x": 4}, {}),
        ({"n": "x"}, {"x": 1}, {}),
    ],
)
def test_the_bytes_are_a_closed_form(layout, axes, summed):
    needed = collectives(LINE, SIZES, layout, axes)
    assert {each.result: each.sent_bytes for each in needed} == summed


@pytest.mark.parametrize(
    "equation, sizes, layout, sentence",
    [
        (
            LINE,
            SIZES,
            {"n": "dp", "f": "dp"},
            "The layout cuts both 'n' and 'f' along 'dp', and they meet in one product: ",
        ),
        (
            "a b, c d ->",
            {"a": 4, "b": 4, "c": 4, "d": 4},
            {"a": "dp", "c": "dp"},
            "The layout cuts both 'a' and 'c' along 'dp'",
        ),
        (
            LINE,
            SIZES,
            {"heads": "dp"},
            "The layout cuts 'heads', which is no dimension: cut one of n, d, f.",
        ),
        (LINE, {"n": 4, "d": 4}, {}, "Nobody says how long dimension 'f' is: add it to the sizes."),
        (
            LINE,
            SIZES,
            {"n": "sp"},
            "The layout cuts 'n' along 'sp', and the mesh has no such axis: name one of dp, tp.",
        ),
        (
            LINE,
            SIZES | {"d": 1022},
            {"d": "dp"},
            (
                "Dimension 'd' of 1022 cannot be cut into 4 equal parts along 'dp': make it 1020 or"
                " 1024."
            ),
        ),
        (LINE, SIZES | {"d": 3}, {"d": "dp"}, "make it 4."),
        ("n d, d f", SIZES, {}, "'n d, d f' is no equation of tensors: write it like"),
        ("n d -> n d f", SIZES, {}, "has a dimension 'f' that no input has: leave it out."),
        (
            "n n -> n",
            SIZES,
            {},
            "has the dimension 'n' twice: give each dimension of a tensor a name of its own.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(equation, sizes, layout, sentence):
    with pytest.raises(Impossible) as told:
        collectives(equation, sizes, layout, {"dp": 4, "tp": 2})
    assert sentence in str(told.value)


@pytest.mark.parametrize(
    "shapes, sentence",
    [
        ([(4, 2)], "There are 1 tensors for 2 inputs: give one for each."),
        (
            [(4, 2), (2, 3, 1)],
            "Input 1 has 3 dimensions and the equation names 2 (d f): name each of them.",
        ),
        (
            [(4, 2), (8, 3)],
            "Dimension 'd' is 2 long in input 0 and 8 in input 1: cut both by one layout.",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(shapes, sentence):
    with pytest.raises(Impossible) as told:
        einsum(LINE, *map(torch.ones, shapes), layout={}, groups={"dp": Alone()})
    assert str(told.value) == sentence
