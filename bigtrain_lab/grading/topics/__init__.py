"""The exercises: a folder each (folder.py says what lies in it), or a file with a Topic."""

from functools import partial
from pathlib import Path

from ...core.family import import_files, load_member
from ..folder import topic

for _asked in sorted(Path(__file__).parent.glob("*/exercise.md")):
    load_member(
        f"{__name__}.{_asked.parent.name}", str(_asked.parent), partial(topic, _asked.parent)
    )
import_files(__name__, __path__)
