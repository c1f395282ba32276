"""The levels of mixed precision by name: a format, and which of the three safeguards are there."""

from typing import NamedTuple

import torch


class Level(NamedTuple):
    name: str
    dtype: torch.dtype
    policy: bool = True
    masters: bool = True
    scaling: bool = True


LEVELS = {
    level.name: level
    for level in (
        Level("fp32", torch.float32, policy=False, masters=False, scaling=False),
        Level("bf16", torch.bfloat16, scaling=False),
        Level("fp16", torch.float16),
        Level("fp16-no-scaling", torch.float16, scaling=False),
        Level("fp16-no-masters", torch.float16, masters=False),
        Level("bf16-no-masters", torch.bfloat16, masters=False, scaling=False),
        Level(
            "fp16-pure", torch.float16, policy=False, masters=False, scaling=False
        ),  # "just call .half()"
    )
}
AS_IT_IS = Level(
    "as it is", torch.float32, policy=False, masters=False, scaling=False
)  # whatever formats the model has
