"""The exercises, a folder each: folder.py says what lies in it."""

from functools import partial
from pathlib import Path

from ...core.family import load_member
from ..folder import PARTS, topic

for _folder in sorted(Path(__file__).parent.iterdir()):
    if any((_folder / part).exists() for part in PARTS):
        load_member(f"{__name__}.{_folder.name}", str(_folder), partial(topic, _folder))
