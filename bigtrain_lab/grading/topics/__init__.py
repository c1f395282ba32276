"""The exercises, one file each: right answers, wrong ones with their sentences, and a probe."""

from ...core.family import import_files

import_files(__name__, __path__)
