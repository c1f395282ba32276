"""The levels of mixed precision by name: a format, and some of the safeguards.

fp32, fp16-operators, fp16, fp16-pure   Apex's O0 to O3; those names work too
bf16-throughout                         Megatron-LM's: masters and sums of gradients in float32,
                                        all else in 16 bits
"""

from typing import NamedTuple


class Level(NamedTuple):
    """Level of precision; each of its four safeguards may be off.

    policy    operators that need range run in float32; if off, all run in `format`
    masters   the optimizer steps float32 copies of the weights
    scaling   the loss is scaled
    rounded   weights are stored in `format`; if off, the policy casts them in each operator
    """

    name: str
    format: str
    policy: bool = True
    masters: bool = True
    scaling: bool = True
    rounded: bool = True

    @property
    def dtype(self):
        import torch  # the names alone are read where there is none

        return getattr(torch, self.format)


LEVELS = {
    level.name: level
    for level in (
        Level("fp32", "float32", policy=False, masters=False, scaling=False),
        Level("bf16", "bfloat16", scaling=False),
        Level("bf16-throughout", "bfloat16", policy=False, scaling=False),
        Level("fp16", "float16"),
        Level("fp16-operators", "float16", masters=False, rounded=False),
        Level("fp16-no-scaling", "float16", scaling=False),
        Level("fp16-no-masters", "float16", masters=False),
        Level("bf16-no-masters", "bfloat16", masters=False, scaling=False),
        Level("fp16-pure", "float16", policy=False, masters=False, scaling=False),
    )
}
APEX = {"O0": "fp32", "O1": "fp16-operators", "O2": "fp16", "O3": "fp16-pure"}
# the model keeps the formats that it has
AS_IT_IS = Level("as it is", "float32", policy=False, masters=False, scaling=False)
