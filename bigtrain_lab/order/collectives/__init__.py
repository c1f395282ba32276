"""The collectives, one file each. Importing this package imports every file in it: add one, gain a
collective."""

from ...core.family import import_files

import_files(__name__, __path__)
