"""Settings of a data loader that no worker can keep."""

from . import refuse, whole


def refuse_loading(loading) -> None:
    refuse(
        (
            not whole(loading.workers, 0),
            f"workers is {loading.workers!r}: give a whole number of at least 0.",
        ),
        (
            not whole(loading.prefetch),
            f"prefetch is {loading.prefetch!r}: give a whole number of at least 1.",
        ),
        (
            not 0 <= loading.slow_s < float("inf"),
            f"slow_s is {loading.slow_s!r}: give seconds, at least 0.",
        ),
    )
