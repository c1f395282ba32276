"""Settings of a data loader that no worker can keep."""

from operator import index

from ...core import Impossible


def refuse(loading) -> None:
    for name, least in (("workers", 0), ("prefetch", 1)):
        value = getattr(loading, name)
        if isinstance(value, bool) or not hasattr(value, "__index__") or index(value) < least:
            raise Impossible(f"{name} is {value!r}: give a whole number of at least {least}.")
    if not 0 <= loading.slow_s < float("inf"):
        raise Impossible(f"slow_s is {loading.slow_s!r}: give seconds, at least 0.")
