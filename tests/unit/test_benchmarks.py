"""Benchmarks at their smallest size: they run, and write nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_benchmarks_run_at_their_smallest_size():
    names = ["epoch", "ledger", "memory", "microscope"]
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--smallest", *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" rows")] == names
