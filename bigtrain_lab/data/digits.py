"""Handwritten digits that ship with scikit-learn, as a stream in which no two passes are alike.

1,797 grey images of 8 x 8 points, of ten classes. 450 of them, the same in every run, are kept for
the test. A pass goes through the other 1,347 in an order of its own, and moves each image by at
most one point in each direction. So a batch larger than the data set holds no sample twice, or
nearly so, and runs with the same number of samples have seen the same ones, whatever their batch.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits (UCI), its test part.
"""

from functools import lru_cache
from importlib.util import find_spec

from ..core.later import later

with later():
    import numpy as np
    import torch

    from ..models import seed as seeds

IMAGES, TEST, POINTS, CLASSES = 1797, 450, 64, 10
PASS = IMAGES - TEST  # images of a pass


class Digits:
    """Inputs are (rows, POINTS), from 0 to 1 with the mean of the training images taken off."""

    def __init__(self, dtype: str = "float64"):
        # the file alone: to import scikit-learn takes each rank a second
        given = torch.tensor(
            np.loadtxt(
                find_spec("sklearn").origin.replace("__init__.py", "datasets/data/digits.csv.gz"),
                delimiter=",",
            )
        )
        images, labels = given[:, :POINTS].view(-1, 8, 8) / 16, given[:, POINTS].long()
        order = torch.randperm(IMAGES, generator=seeds.generator("digits", "test"))
        test, train = order.split([TEST, PASS])
        images = images - images[train].mean()
        around = torch.nn.functional.pad(images, (1, 1, 1, 1), value=float(images.min()))
        moved = [around[:, i : i + 8, j : j + 8].flatten(1) for i in range(3) for j in range(3)]
        to = getattr(torch, dtype)
        self._moved, self._labels = torch.stack(moved, 1)[train].to(to), labels[train]
        self.test = images[test].flatten(1).to(to), labels[test]

    def batch(self, seed: int, first: int, count: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """(inputs, labels) of so many samples of the stream, from sample `first` on."""
        inputs, labels = [], []
        while count:
            number, at = divmod(first, PASS)
            order, move = one_pass(seed, number)
            own = slice(at, at + count)
            inputs.append(self._moved[order[own], move[own]])
            labels.append(self._labels[order[own]])
            first, count = first + len(labels[-1]), count - len(labels[-1])
        return torch.cat(inputs), torch.cat(labels)


@lru_cache(maxsize=32)
def one_pass(seed: int, number: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """The order of a pass, and by which of the nine moves each image is met."""
    draw = seeds.generator("digits", seed, number)
    return torch.randperm(PASS, generator=draw), torch.randint(9, (PASS,), generator=draw)


digits = lru_cache(maxsize=2)(Digits)  # by the format of their points
