"""Dry runs and predictions are pure functions of settings, so their results are kept.

    function, arguments, what made it  ->  result

In memory, and among the user's files that can be made again, for the next kernel or command. This
library's sources and torch make a result: where either has changed, it is made again, as where the
file is damaged. What depends on anything else, as on a class of the user's own, stays in memory.
Cost: 1024 results of a function in memory, and `MOST` files in all, some 50 kB each: where there
are more, all go.
"""

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache, wraps
from hashlib import sha256
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from typing import Any

from ..core import Impossible, write_whole
from .machine import kept_in

MOST = 4096
MADE_BY = "BIGTRAIN_LAB_MADE_BY"  # names it where results came along, and torch did not


def kept(function: Callable) -> Callable:
    """The function, which is called once for each tuple of arguments. `__wrapped__` keeps
    nothing."""

    @lru_cache(maxsize=1024)
    @wraps(function)
    def known(*given, **named):
        try:
            key = sha256(told((function, given, *named.items(), made_by())).encode()).hexdigest()
        # no file is of anybody else's, or where the sources are no files
        except (AttributeError, TypeError, IndexError):
            return function(*given, **named)
        place = kept_in("kept").parent / "kept" / key
        with suppress(OSError):  # it was never made
            if (whole := place.read_bytes())[:32] == sha256(whole[32:]).digest():
                return pickle.loads(whole[32:])
        result = function(*given, **named)
        if os.environ.get(MADE_BY):  # a page keeps nothing for later
            return result
        with suppress(OSError, Impossible):  # there is no room for it
            body = pickle.dumps(result)
            place.parent.mkdir(parents=True, exist_ok=True)
            others = [*place.parent.iterdir()]
            for old in others if len(others) >= MOST else ():
                old.unlink(missing_ok=True)
            write_whole(place, sha256(body).digest() + body)
        return result

    known.__wrapped__ = function  # and not the function between
    return known


def told(value: Any) -> str:
    """The text of a value that is plain or the library's own, the same in every process.
    AttributeError or TypeError for any other."""
    if isinstance(value, tuple):
        return f"({', '.join(map(told, value))})"
    if is_dataclass(value) and not isinstance(value, type):
        return told((type(value), *(getattr(value, field.name) for field in fields(value))))
    if callable(value):
        name = f"{value.__module__}.{value.__qualname__}"
        if name.startswith("bigtrain_lab.") and "<" not in name:
            return name
    elif isinstance(value, (str, Real, type(None))) or type(value).__name__ == "dtype":
        return repr(value)
    raise TypeError(f"{value!r} may differ elsewhere")


@cache
def made_by() -> str:
    """A name of what makes results."""
    if told := os.environ.get(MADE_BY):
        return told
    return sha256(
        b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    ).hexdigest() + version("torch")
