"""Sizes and times in human units, said the same way in pictures, tables and sentences."""

from collections.abc import Mapping

UNITS = ("B", "kB", "MB", "GB", "TB")


def size(count: float, of: str = "B") -> str:
    """Bytes in decimal units, as on a data sheet, exact below a kilobyte: 640 B, 373 MB; or a
    number of other things, of "": 1.3 M."""
    power = prefix(count)
    return f"{count / 1000**power:,.4g} {UNITS[power][:-1]}{of}".rstrip()


def prefix(count: float) -> int:
    """The power of 1000 in whose unit bytes are below 1,000."""
    power = 0
    while abs(float(f"{count / 1000**power:.4g}")) >= 1000 and power < len(UNITS) - 1:
        power += 1
    return power


def device_size(count: int) -> str:
    """A device's memory: its maker counts in powers of two."""
    return size(count) if count % 2**30 else f"{count // 2**30} GiB"


def by_kind(held: Mapping[str, int]) -> str:
    """Bytes by kind in a list, the largest first: "weights 12 MB, activations 3 MB"."""
    kinds = sorted((kind for kind in held if held[kind]), key=lambda kind: -held[kind])
    return ", ".join(f"{kind} {size(held[kind])}" for kind in kinds) or "nothing"


def counted(count: int, word: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def number(value: float) -> str:
    """Four digits, zeros too, so that numbers beside each other are as exact: 0.3200 beside 0.3234;
    a whole number as it is."""
    return f"{value:{'#' * (value % 1 != 0)},.4g}".removesuffix(".")


def duration(value: float, unit: str) -> str:
    """A time in slots as it is, in seconds with a prefix: 0.00153 s is "1.53 ms"."""
    if unit != "s":
        return f"{value:,.4g} {unit}" + ("" if value == 1 else "s")
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * factor >= 1:
            return f"{value * factor:.4g} {name}"
    return "0 s" if not value else f"{value * 1e9:.3g} ns"


def ranks(numbers) -> str:
    """ "rank 1", "ranks 0, 2 and 3"."""
    *most, last = map(str, numbers)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
