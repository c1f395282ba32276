"""Counting a tensor's values by power of two: |x| = m 2^e with 1/2 <= m < 1 lies in the bin
[2^(e-1), 2^e).

Cost: one pass over the tensor for m and e, one to count; the counts alone go to the host. Gradients
want this in the type they were computed in: a conversion to fewer bits would already have lost what
is to be counted.
"""

import torch
from torch import Tensor

from ...core import refuse
from ...core.formats import Exponents


@torch.no_grad()
def exponents(tensor: Tensor) -> Exponents:
    """The exponents of a floating tensor, of any number of values, none included."""
    refuse(
        (
            not tensor.is_floating_point(),
            f"A tensor of {str(tensor.dtype)[6:]} has no exponents: give floating numbers, not ids,"
            " labels or masks.",
        )
    )
    values = tensor.detach().flatten()
    values = (
        values if values.dtype == torch.float64 else values.float()
    )  # every 16-bit and 8-bit number is a float32
    finite = values.isfinite()
    kept = values[finite & (values != 0)]
    power = torch.frexp(kept).exponent - 1
    first = int(power.min()) if len(kept) else 0
    counts = torch.bincount(power - first).tolist()
    broken = int((~finite).sum())
    return Exponents(first, tuple(counts), values.numel() - kept.numel() - broken, broken)
