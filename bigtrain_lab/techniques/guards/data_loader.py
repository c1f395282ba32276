"""Settings of a data loader that no worker can keep."""

from . import whole

LOADING = {
    "workers": (lambda value: whole(value, 0), "a whole number of at least 0"),
    "prefetch": (whole, "a whole number of at least 1"),
    "slow_s": (lambda value: 0 <= value < float("inf"), "seconds, at least 0"),
}
