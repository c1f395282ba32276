"""What a lab does while its training goes on: callbacks of the one loop, recipe.py.

A lab subclasses Lens, and hands one to `train`. Labs are imported where there is no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext


class Lens:
    """Callbacks of the training loop. These do nothing, begin at the first window and end at the
    last."""

    span: Callable | None = None  # (step, weight version) -> what is around it, if not a span

    def __init__(self, lab=None, rank=None):
        self.lab, self.rank = lab, rank

    def inputs(self) -> Sequence:
        """Tensors that are no part of what the training holds."""
        return ()

    def begin(self, training) -> int:
        """Before the first window, which this returns: above 0 where a run is taken up again."""
        return 0

    def ended(self, number: int, training, losses: Sequence[float]) -> bool:
        """After each window, with the losses of this replica's own micro-batches: whether the run
        ends here. All ranks must answer alike."""
        return False

    def window(self, number: int, stages: Mapping, samples: Sequence):
        """Around all that is done for a window."""
        return nullcontext()

    def gradient(self, number: int, precision) -> None:
        """When the window's gradient is whole, and still scaled."""

    def updated(self, number: int, precision, stepped: bool) -> None:
        """When the weights are new, or the loss scaler has skipped the step."""
