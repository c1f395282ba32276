"""The experiments, one file each. Importing this package imports every file in it: add one, gain an experiment."""

from importlib import import_module
from pkgutil import iter_modules

from .experiment import Experiment, Quantity

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Experiment", "Quantity"]
