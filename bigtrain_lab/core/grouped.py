"""Values by a key, as they come: `itertools.groupby` wants them sorted, and forgets each group."""

from collections.abc import Hashable, Iterable
from typing import Any


def grouped(pairs: Iterable[tuple[Hashable, Any]]) -> dict[Any, list]:
    """Key -> its values, keys and values in the order in which they come."""
    found = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
