"""The widgets of ipywidgets, by their names; they tell a browser their words in the reader's
language."""

from functools import cache

import ipywidgets

from ..view.spoken import spoken


@cache
def __getattr__(name: str) -> type:
    return spoken(getattr(ipywidgets, name))
