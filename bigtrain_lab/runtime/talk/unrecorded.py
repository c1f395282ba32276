"""What stands in a recorder's place where nothing is recorded: groups and ranks have one mechanism,
with a recorder (record/recorder.py) or without."""

from contextlib import nullcontext

from .clock import Clock


class Unrecorded:
    """A recorder that marks nothing, and a log that keeps nothing; no clock but the wall's goes."""

    records, rank, lane, clock = False, 0, "compute", Clock(None, 0)

    def ignore(self, *_, **__) -> None:
        """Do nothing: no time, no collective of a plan, nothing to do later."""

    mark = note = write = jitter = look_at = enter = issue = later = call = ignore
    refuse_taken = refuse_other_lane = scalar = histogram = watch = finish = ignore

    def span(self, *_, **__):
        return nullcontext()

    aside = span


UNRECORDED = Unrecorded()
