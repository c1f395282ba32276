"""`python -m benchmarks [name ...]`: run all benchmarks, or those named, and write benchmarks/results."""

import sys
from importlib import import_module
from pathlib import Path

from .measure import write

NAMES = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in ("__init__", "__main__", "measure"))


def main(chosen: list[str]) -> None:
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        sys.exit(f"There is no benchmark called {unknown[0]!r}: choose from {', '.join(NAMES)}.")
    for name in chosen or NAMES:
        write(name, import_module(f"benchmarks.{name}").rows())


if __name__ == "__main__":
    main(sys.argv[1:])
