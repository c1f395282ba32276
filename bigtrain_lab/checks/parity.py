"""Two ways to compute the same tensors agree up to the rounding of their order of summation.

    |a - b|_2  <=  1e-12 max(|b|_2, 1e-3 |g|_2)        for each tensor, in float64

g is all tensors together: a tensor that is zero up to rounding (the gradient of an attention key's bias) has a
relative error that is noise. Bit equality across orders of summation would be the wrong test, and 1e-2 too.
"""

import math
from collections.abc import Mapping

import numpy as np

TOLERANCE = 1e-12


def tensors_differ(found: Mapping, expected: Mapping, tolerance: float = TOLERANCE) -> list[str]:
    """Sentences on missing names, shapes and values of `found` against `expected`; arrays or tensors by name."""
    findings = [f"{name} is missing" for name in expected if name not in found]
    findings += [f"{name} should not be there" for name in found if name not in expected]
    pairs = {name: (np.asarray(found[name], dtype=np.float64), np.asarray(expected[name], dtype=np.float64))
             for name in expected if name in found}
    whole = math.sqrt(sum(float(np.sum(b * b)) for _, b in pairs.values()))
    for name, (a, b) in pairs.items():
        if a.shape != b.shape:
            findings.append(f"{name} has shape {a.shape}, expected {b.shape}")
            continue
        off, size = float(np.linalg.norm(a - b)), max(float(np.linalg.norm(b)), 1e-3 * whole)
        if not off <= tolerance * size:  # nan fails too
            findings.append(f"{name} is off by {off / size if size else off:.2e}, allowed {tolerance:.0e}{factor(a, b)}")
    return findings


def worst(found: Mapping, expected: Mapping) -> float:
    """The largest relative error of any tensor, as `tensors_differ` measures it; the names and shapes must agree."""
    pairs = [(np.asarray(found[name], dtype=np.float64), np.asarray(expected[name], dtype=np.float64)) for name in expected]
    whole = math.sqrt(sum(float(np.sum(b * b)) for _, b in pairs))
    return max(float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-3 * whole) for a, b in pairs)


def factor(a, b) -> str:
    """ ": exactly 4 times too large", where that is what happened; the sign of a forgotten mean."""
    norm = float(np.sum(b * b))
    ratio = float(np.sum(a * b)) / norm if norm else 0.0
    if ratio and ratio != 1 and np.allclose(a, ratio * b, rtol=1e-6, atol=1e-12 * math.sqrt(norm)):
        return f": exactly {ratio:.6g} times the right value" if abs(ratio - 1) > 1e-3 else ""
    return ""
