"""Recompute: throw activations away in the forward, run the forward again when the backward asks
for them.

    plain         keeps all that fn saved                 1 forward
    checkpoint    keeps fn's arguments                    2 forwards: with F:B = 1:2 a third more
                                                          work

The chapters, in the order to read: `idea` is the whole thought in ten lines of autograd Function,
with what those lines cannot do; `conditions` is what must be as it was for fn to run alike;
`tickets` stand for what autograd would save; `region` is checkpoint(fn), which fills them from kept
arguments; `chain` carries out a plan of many layers, which fills them from kept states, and `weigh`
tells what those weigh; `inside` recomputes a part of a module only. Sources: Griewank and Walther
2000 (ACM TOMS 26(1)); Chen et al. 2016 (arXiv:1604.06174).
"""

from .chain import checkpoint_sequential, recomputed
from .idea import checkpoint_by_function
from .inside import selective
from .region import checkpoint
from .weigh import weigh

__all__ = [
    "checkpoint",
    "checkpoint_by_function",
    "checkpoint_sequential",
    "recomputed",
    "selective",
    "weigh",
]
