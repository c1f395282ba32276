"""Every pair of techniques, on two ranks of a pipeline, against the same training in one
process."""

from pathlib import Path

from tests.compose.ingredients import table
from tests.compose.matrix import differences, trained


def test_every_pair_equals_one_process_or_is_refused_in_its_sentence(tmp_path):
    assert differences(trained(tmp_path / "run")) == []


def test_the_page_lists_these_pairs():
    assert (Path(__file__).parents[2] / "docs/compose.md").read_text(encoding="utf-8") == table()
