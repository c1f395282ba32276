"""Two ways to compute the same tensors agree up to the rounding of their order of summation.

    |a - b|_2  <=  1e-12 max(|b|_2, 1e-3 |g|_2)        for each tensor, in float64

g is all tensors together: a tensor that is zero up to rounding (the gradient of an attention key's
bias) has a relative error that is noise. Bit equality across orders of summation would be the wrong
test, and 1e-2 too. A training that diverged is the same where both are nan, or the same inf, in the
same places; the rest is measured as above.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

TOLERANCE = 1e-12


def tensors_differ(found: Mapping, expected: Mapping, tolerance: float = TOLERANCE) -> list[str]:
    """Sentences on missing names, shapes and values of `found` against `expected`; arrays or
    tensors by name."""
    return [f"{name} is missing" for name in expected if name not in found] + values_differ(
        found, expected, tolerance
    )


def ranks_differ(
    results: Sequence[Mapping], expected: Mapping, tolerance: float = TOLERANCE
) -> list[str]:
    """Sentences on what each rank returned, `results[rank]`: every name on some rank, and every
    replica of it equal."""
    returned = set().union(*results)
    return [f"{name} is missing on every rank" for name in expected if name not in returned] + [
        f"rank {rank}: {told}"
        for rank, found in enumerate(results)
        for told in values_differ(found, expected, tolerance)
    ]


def values_differ(found: Mapping, expected: Mapping, tolerance: float) -> list[str]:
    """Sentences on the names of `found`: those that are not expected, and shapes and values that
    are others."""
    findings = [f"{name} should not be there" for name in found if name not in expected]
    shapes = {
        name: (exact(found[name]).shape, exact(expected[name]).shape)
        for name in expected
        if name in found
    }
    findings += [f"{name} has shape {a}, expected {b}" for name, (a, b) in shapes.items() if a != b]
    errors = relative_errors(
        {name: found[name] for name, (a, b) in shapes.items() if a == b}, expected
    )
    allowed = tolerance if any(np.any(exact(b)) for b in expected.values()) else 0.0
    return findings + [
        f"{name} {told(exact(found[name]), exact(expected[name]), off, tolerance)}"
        for name, off in errors.items()
        if not off <= allowed
    ]  # nan fails too


def relative_errors(found: Mapping, expected: Mapping) -> dict[str, float]:
    """|a - b| / max(|b|, 1e-3 |g|) of each tensor of `found`, whose shapes must be those expected;
    |a - b| where all of g is zero. Norms are of the numbers that are finite; an error is nan or inf
    where one of the two alone is no finite number.
    """
    sizes = {name: norm(exact(b)) for name, b in expected.items()}
    whole = math.hypot(*sizes.values())
    return {
        name: (
            float(np.linalg.norm(apart(exact(a), exact(expected[name]))))
            / (max(sizes[name], 1e-3 * whole) or 1.0)
        )
        for name, a in found.items()
    }


def exact(tensor) -> np.ndarray:
    """In float64, in which differences of any other number format are taken."""
    return np.asarray(tensor, dtype=np.float64)


def norm(b) -> float:
    return float(np.linalg.norm(b[np.isfinite(b)]))


def apart(a, b):
    """a - b, and 0 where both are nan or the same inf."""
    return np.subtract(a, b, out=np.zeros_like(b), where=~((a == b) | (np.isnan(a) & np.isnan(b))))


def told(a, b, off: float, tolerance: float) -> str:
    """What is wrong with a, in words: the first place where one of the two alone is no finite
    number, else how far it is off."""
    places = np.argwhere(~np.isfinite(apart(a, b)))
    if len(places):
        place = tuple(places[0].tolist())
        where, others = (
            f" at {list(place)}" * bool(place),
            f", and so in {len(places)} places" * (len(places) > 1),
        )
        return f"is {a[place]:.6g}{where}, expected {b[place]:.6g}{others}"
    return f"is off by {off:.2e}, allowed {tolerance:.0e}{factor(a, b)}"


def factor(a, b) -> str:
    """ ": exactly 4 times too large", where that is what happened; the sign of a forgotten mean."""
    fits = np.isfinite(b)
    a, b = a[fits], b[fits]
    norm = float(np.sum(b * b))
    ratio = float(np.sum(a * b)) / norm if norm else 0.0
    whole = (
        ratio
        and abs(ratio - 1) > 1e-3
        and np.allclose(a, ratio * b, rtol=1e-6, atol=1e-12 * math.sqrt(norm))
    )
    return f": exactly {ratio:.6g} times the right value" if whole else ""
