"""The pipeline schedules, one file each. Importing this package imports every file in it: add one,
gain a schedule."""

from ...core.family import import_files

import_files(__name__, __path__)
