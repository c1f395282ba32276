"""Dry runs of many sizes, from those of a few.

    number(B, S, T) = sum over terms of c(term) x term,   terms such as 1, BS, BST
    few dry runs --> c --> one product of matrices a further dry run

Each number of a dry run (bytes at each moment, FLOPs, operators) is a sum of products of its sizes,
times whole numbers that do not depend on them. So as many dry runs as there are terms tell those of
all sizes, exactly; one more is the check. Where it fails, each place has a dry run of its own.

Cost: the few dry runs once, then some 10 us a hundred numbers.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from math import prod

from ..core.later import np
from ..runtime.kept import MADE_BY, kept

FEW, MANY = (2, 3, 5), 1009  # units of a size: its dry runs, and the one that checks them


@lru_cache(maxsize=1024)
def along(run: Callable, settled: tuple, sizes: tuple[int, ...], degrees: tuple, units: tuple):
    """Return run(*settled, sizes). Where one size alone has moved since the last such call, as on a
    slider, its dry runs tell all its places. `degrees`: the highest power of each size; `units`:
    what each is a multiple of. One unit alone has a dry run of its own, since torch copies less
    where a dimension is 1."""
    before = last_sizes(run, settled)
    moved = [at for at, pair in enumerate(zip(before or sizes, sizes)) if pair[0] != pair[1]]
    before[:] = sizes
    if (
        MADE_BY in os.environ  # a page has the dry run of each place, and no numpy
        or len(moved) != 1
        or sizes[moved[0]] % units[moved[0]]
        or sizes[moved[0]] < 2 * units[moved[0]]
    ):
        return run(*settled, sizes)
    (at,) = moved
    places = [units[at] * number for number in (*FEW[: degrees[at] + 1], MANY)]
    shapes = tuple((*sizes[:at], place, *sizes[at + 1 :]) for place in places)
    return of_terms(
        run, settled, tuple((at,) * power for power in range(degrees[at] + 1)), shapes, sizes
    )


@lru_cache(maxsize=1024)
def last_sizes(run: Callable, settled: tuple) -> list[int]:
    """Those of the last call."""
    return []


def of_terms(run: Callable, settled: tuple, terms: tuple, shapes: tuple, sizes: tuple[int, ...]):
    """Return run(*settled, sizes) by its `terms`, each the places of its factors among the sizes,
    from runs of so many `shapes` and one more, which checks them."""
    form, factors = by_terms(run, settled, terms, shapes)
    if factors is None:
        return run(*settled, sizes)
    numbers = iter((products(terms, sizes) @ factors).tolist())
    return with_numbers(form, lambda _: next(numbers))


@kept
def by_terms(run: Callable, settled: tuple, terms: tuple, shapes: tuple):
    """A dry run without its numbers, and what each term counts for in each of them; None where that
    does not tell the last shape's."""
    numbers, forms = [[] for _ in shapes], []
    for shape, own in zip(shapes, numbers):
        forms.append(
            with_numbers(run.__wrapped__(*settled, shape), lambda n, own=own: own.append(n) or 0)
        )
    if any(form != forms[0] for form in forms):
        return forms[0], None
    of_shapes, numbers = np.array([products(terms, shape) for shape in shapes]), np.array(numbers)
    count = len(terms)
    factors = np.rint(np.linalg.solve(of_shapes[:count], numbers[:count])).astype(int)
    return forms[0], factors if (of_shapes @ factors == numbers).all() else None


def products(terms: tuple, sizes: tuple[int, ...]) -> "np.ndarray":
    """The terms' values."""
    return np.array([prod(sizes[at] for at in term) for term in terms])


def with_numbers(told, number: Callable[[int], int]):
    """The same result with number(n) in the place of each number n."""
    if type(told) is int:
        return number(told)
    if isinstance(told, dict):
        return {key: with_numbers(value, number) for key, value in told.items()}
    if isinstance(told, tuple):
        values = [with_numbers(value, number) for value in told]
        return type(told)(*values) if hasattr(told, "_fields") else tuple(values)
    return told
