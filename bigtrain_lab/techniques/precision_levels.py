"""The levels of mixed precision by name: a format, and which of the safeguards are there.

fp32, fp16-operators, fp16, fp16-pure   Apex's O0 to O3, by which names they are found too
bf16-throughout                         Megatron-LM's: weights and activations in 16 bits, masters
                                        and sums of gradients in float32
"""

from typing import NamedTuple


class Level(NamedTuple):
    """`policy`: operators that need range run in float32; else all run in `format`. `rounded`:
    weights are stored in it; else an operator of the policy casts them as it uses them.
    `masters`: the optimizer steps float32 copies. `scaling`: the loss is scaled."""

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
# whatever formats the model has
AS_IT_IS = Level("as it is", "float32", policy=False, masters=False, scaling=False)
