"""Benchmarks at their smallest size: they run, and write nothing.

The others take longer or need more than Python. They are only imported, and it is checked that
their `rows` can be called: accumulate, browser, combined, compose, course, data_parallel,
exactness, firefox, galleries, grading, hub, kills, large_batch, launch, live, pipelining, precision,
simulate, site, strangers, translate, weak_scaling, zero.
"""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES

RUN = [
    "checkpoint",
    "epoch",
    "faults",
    "fusion",
    "lamb",
    "ledger",
    "memory",
    "microscope",
    "plan",
    "policy",
    "sliders",
    "tensor_parallel",
]


@pytest.mark.slow
def test_benchmarks_run_at_their_smallest_size():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--smallest", *RUN],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" rows")] == RUN


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in RUN])
def test_a_benchmark_is_imported_and_its_rows_take_its_smallest_size(name):
    module = import_module(f"benchmarks.{name}")
    inspect.signature(module.rows).bind(
        **{
            key: value
            for key, value in getattr(module, "SMALLEST", {}).items()
            if not key.isupper()
        }
    )
    assert name in __doc__
