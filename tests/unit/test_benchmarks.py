"""Benchmarks at their smallest size: they run, and write nothing.

The others take longer or need more than Python. They are only imported, and it is checked that
their `rows` can be called: browser, combined, compose, data_parallel, exactness, galleries,
grading, kills, large_batch, launch, live, pipelining, precision, simulate, strangers, translate,
weak_scaling, zero.
"""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import sliders
from benchmarks.__main__ import NAMES
from bigtrain_lab.core import Impossible

ROOT = Path(__file__).parents[2]
RUN = [
    "accumulate",
    "checkpoint",
    "epoch",
    "faults",
    "fusion",
    "lamb",
    "ledger",
    "memory",
    "microscope",
    "policy",
    "sliders",
    "tensor_parallel",
]


@pytest.mark.slow
def test_benchmarks_run_at_their_smallest_size():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--smallest", *RUN],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" rows")] == RUN


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_imported_and_its_rows_take_its_smallest_size(name):
    module = import_module(f"benchmarks.{name}")
    sizes = getattr(module, "SMALLEST", {})
    inspect.signature(module.rows).bind(
        **{key: value for key, value in sizes.items() if not key.isupper()}
    )
    assert name in RUN or name in __doc__


@pytest.mark.slow
def test_sliders_names_what_a_lab_refuses_at_its_settings_and_at_its_prediction(monkeypatch):
    def seconds(asked, player):
        if asked.precision == "bf16":
            raise Impossible("No speed is stated.")
        return 0.0

    for name, value in {"LABS": ("combined",), "seconds": seconds, "first_time": list}.items():
        monkeypatch.setattr(sliders, name, value)
    told = sliders.rows()[-1]["what"]
    assert (
        "precision bf16: No speed is stated." in told
        and told.count("replicas 3: 8 micro-batches cannot") == 1
    )
