"""bigtrain_lab: learn how large models are trained, with real processes, real tensors and real
bytes."""

from importlib import import_module
from importlib.util import find_spec

__version__ = "0.1.0"


def offered(package: str, homes: dict[str, tuple[str, ...]]):
    """`__all__`, `__getattr__` and `__dir__` of a package that imports each name, from the module
    that is its home, when it is first asked for; and any of its modules."""
    home = {name: module for module, names in homes.items() for name in names}

    def get(name: str):
        if name in home:
            return getattr(import_module(f"{package}.{home[name]}"), name)
        if not name.startswith("_") and find_spec(whole := f"{package}.{name}"):
            return import_module(whole)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return list(home), get, lambda: sorted(home)


# What a user types. `import bigtrain_lab` alone stays instant.
__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "core": ("Cost", "Hardware", "Impossible", "Mesh", "Trace"),
        "order.schedule": ("Action", "Schedule"),
        "order.collective": ("Collective", "Move"),
        "order.plan": ("Plan",),
        "order.simulate": ("simulate",),
        "order.recompute.plan": ("Recompute",),
        "runtime": ("Group", "Rank", "RankFailed", "Run", "launch"),
        "train.recipe": ("Recipe",),
        "train.optimizer": ("Optimizer",),
        "experiments": ("Experiment",),
        "grading": ("Topic",),
        "lesson": ("predict",),
        "view.player": ("Player",),
        "panel": ("Panel", "show"),
    },
)
