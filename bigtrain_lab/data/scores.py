"""How good a classifier of unbalanced classes is: F1 over all answers, and over the classes.

    F1 = 2 TP / (2 TP + FP + FN)
    micro: TP, FP, FN summed over the classes;      macro: the mean of the classes' F1

Micro counts answers, so frequent classes decide it; macro counts classes, so a rare one weighs as
much as any. In relation extraction "no relation" is left out of both sums, though taking it for a
relation is an error (Zhang et al. 2017, TACRED; SemEval-2010 task 8 reports the macro one). A class
that neither occurs nor is answered has F1 0.
"""

from typing import NamedTuple

import torch

from bigtrain_lab.core import refuse


class F1(NamedTuple):
    micro: float
    macro: float
    each: tuple[float, ...]


def f1(answers: torch.Tensor, labels: torch.Tensor, classes) -> F1:
    """Of whole-number tensors of one shape, over these classes."""
    classes = list(classes)
    refuse(
        (
            answers.shape != labels.shape,
            f"{answers.numel()} answers and {labels.numel()} labels cannot be compared: give one"
            " answer for each label.",
        ),
        (not classes, "F1 over no classes is nothing: name at least one class."),
    )
    counts = [
        [int(found.sum()) for found in ((answers == c) & (labels == c), answers == c, labels == c)]
        for c in classes
    ]
    each = tuple(_of(*own) for own in counts)
    return F1(_of(*map(sum, zip(*counts))), sum(each) / len(each), each)


def _of(hits: int, said: int, true: int) -> float:
    """2 TP + FP + FN is the number of answers of the class plus that of its labels."""
    return 2 * hits / (said + true) if said + true else 0.0
