"""A prediction and a run, event for event: actions, levels at their ends and inside them, who was
alive at the peak."""

from bigtrain_lab.core import Histogram, Scalar


def first_difference(predicted, modelled):
    """The first event that only one of them has; None where they are alike, but for what a run
    reports."""
    one, other = (
        {e for e in trace.events if not isinstance(e, (Scalar, Histogram))}
        for trace in (predicted, modelled)
    )
    assert any(getattr(e, "inside", False) for e in other), "the run was followed"
    return min(one ^ other, key=lambda e: (e.start, str(e)), default=None)
