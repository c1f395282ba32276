"""Selective: every layer is recorded in the forward, and inside it only what weighs much and costs
little is run again.

    a transformer layer saves        s b h (34 + 5 a s / h)  bytes in half precision
      selective                      34 s b h                attention's scores, softmax, dropout
                                                             and product made again
      full, checkpointed as a whole  2 s b h                 its input

s tokens, b rows, width h, a heads. The square is 5 a s / h of it: at s = h = 2048 and a = 16, 80
parts of 114, which cost 4 s / (72 h + 12 s) of a step's multiplications, 4.8%, where full recompute
costs a third. Between layers nothing is recomputed, so the order is that of keep-all. Source:
Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models
(arXiv:2205.05198), sections 4 and 5.
"""

from .keep_all import KeepAll


class Selective(KeepAll):
    name = "selective"
    inside = True


def transformer_bytes(
    sequence: int, rows: int, width: int, heads: int, layers: int = 1, recompute: str = "none"
) -> int:
    """What a half-precision transformer keeps for the backward; `recompute`: "none", "selective" or
    "full" (beside the one live layer)."""
    hidden = sequence * rows * width
    each = {
        "none": 34 * hidden + 5 * heads * sequence * sequence * rows,
        "selective": 34 * hidden,
        "full": 2 * hidden,
    }
    return layers * each[recompute]


def selective_share(sequence: int, width: int) -> float:
    """The multiplications that selective recompute adds, as a share of a plain step's, where the
    whole core is run again."""
    return 4 * sequence / (72 * width + 12 * sequence)
