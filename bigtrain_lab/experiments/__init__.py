"""The experiments, one file each. Importing this package imports every file in it: add one, gain an
experiment."""

from ..core.family import import_files
from .experiment import Experiment, Quantity

import_files(__name__, __path__)

__all__ = ["Experiment", "Quantity"]
