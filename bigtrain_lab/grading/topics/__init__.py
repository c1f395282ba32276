"""The exercises, a folder each: folder.py says what lies in it."""

from functools import partial
from pathlib import Path

from ...core.family import load_member
from ..folder import topic

for _asked in sorted(Path(__file__).parent.glob("*/exercise.md")):
    load_member(
        f"{__name__}.{_asked.parent.name}", str(_asked.parent), partial(topic, _asked.parent)
    )
