"""bigtrain_lab: learn how large models are trained, with real processes, real tensors and real bytes."""

from importlib import import_module

__version__ = "0.1.0"

# What most people need, imported when first asked for: `import bigtrain_lab` alone stays instant.
_HOMES = {
    "core": ("Cost", "Hardware", "Impossible", "Mesh", "Trace"),
    "schedule": ("Action", "Schedule"),
    "runtime": ("Group", "Run", "RankFailed", "launch"),
    "recipe": ("Recipe",),
    "experiments": ("Experiment",),
    "player": ("Player",),
    "panel": ("Panel", "show"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__():
    return sorted({*globals(), *__all__})
