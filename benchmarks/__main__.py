"""`python -m benchmarks [--smallest] [name ...]`: run all benchmarks, or those named, and write
benchmarks/results.

--smallest   at the sizes of each module's SMALLEST (its constants, and what its `rows` is given):
             whether it runs, and nothing is written
"""

import sys
from importlib import import_module
from pathlib import Path

from .measure import write

NAMES = sorted(
    p.stem
    for p in Path(__file__).parent.glob("*.py")
    if p.stem not in ("__init__", "__main__", "measure", "mutants")
)


def main(chosen: list[str]) -> None:
    smallest = "--smallest" in chosen
    chosen = [name for name in chosen if name != "--smallest"]
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        sys.exit(f"There is no benchmark called {unknown[0]!r}: choose from {', '.join(NAMES)}.")
    for name in chosen or NAMES:
        module = import_module(f"benchmarks.{name}")
        if not smallest:
            write(name, module.rows())
            continue
        sizes = getattr(module, "SMALLEST", {})
        vars(module).update({key: value for key, value in sizes.items() if key.isupper()})
        print(
            name,
            len(
                [*module.rows(**{key: value for key, value in sizes.items() if not key.isupper()})]
            ),
            "rows",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
