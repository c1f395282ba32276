"""The optimizers, one file each, from the simplest on; any other file here is imported after them:
add one, gain an optimizer in the menus of all labs."""

from ...core.family import import_files

from . import sgd, momentum, adam, adam_fused, adamw, lars, lamb  # noqa: F401  # isort: skip

import_files(__name__, __path__)
