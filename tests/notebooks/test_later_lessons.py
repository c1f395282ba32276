"""Lessons from the eleventh on run as committed: see test_notebooks.py."""

from tests.notebooks.test_notebooks import LESSONS, run_as_committed


def test_later_lessons_run_as_committed(tmp_path):
    run_as_committed(tmp_path, LESSONS[10:])
