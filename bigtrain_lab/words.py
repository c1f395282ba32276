"""Sizes and times in human units, said the same way in pictures, tables and sentences."""

from collections.abc import Mapping


def size(count: float) -> str:
    """Bytes in decimal units, as on a data sheet, exact below a kilobyte: 640 B, 1.536 kB, 373 MB."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while abs(float(f"{value:.4g}")) >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:,.4g} {units[0]}"


def device_size(count: int) -> str:
    """A device's memory: its maker counts in powers of two."""
    return size(count) if count % 2**30 else f"{count // 2**30} GiB"


def by_kind(held: Mapping[str, int]) -> str:
    """Bytes by kind in a list, the largest first: "weights 12 MB, activations 3 MB"."""
    kinds = sorted((kind for kind in held if held[kind]), key=lambda kind: -held[kind])
    return ", ".join(f"{kind} {size(held[kind])}" for kind in kinds) or "nothing"


def exactly(count: int) -> str:
    return f"{count:,} byte" + ("" if count == 1 else "s")


def duration(value: float, unit: str) -> str:
    """A time in slots as it is, in seconds with a prefix: 0.00153 s is "1.53 ms"."""
    if unit != "s":
        return f"{value:,.4g} {unit}" + ("" if value == 1 else "s")
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * factor >= 1:
            return f"{value * factor:.4g} {name}"
    return "0 s" if not value else f"{value * 1e9:.3g} ns"
