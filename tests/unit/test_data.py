"""Text as bytes: samples are a function of their arguments, refusals are one sentence."""

import pydoc_data.topics

import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.data import ByteText, help_text, read_text

ALPHABET = ByteText(bytes(range(256)))


def test_every_window_is_drawn_and_none_beyond_the_end():
    text = ByteText(bytes(range(10)))
    inputs, targets = text.batch(0, 0, 0, batch=500, sequence=7)
    assert set(inputs[:, 0].tolist()) == {0, 1, 2} and targets.max() == 9
    inputs, targets = text.batch(0, 0, 0, batch=3, sequence=9)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs, torch.arange(9).expand(3, 9)) and torch.equal(targets, inputs + 1)


def test_a_batch_depends_on_its_arguments_only():
    ask = {"seed": 1, "step": 2, "micro_batch": 3, "batch": 4, "sequence": 8}
    first, _ = ALPHABET.batch(**ask)
    torch.manual_seed(99)
    ALPHABET.batch(**{**ask, "step": 7})
    before = torch.get_rng_state()
    again, _ = ALPHABET.batch(**ask)
    assert torch.equal(first, again) and torch.equal(before, torch.get_rng_state())
    for name in ("seed", "step", "micro_batch"):
        other, _ = ALPHABET.batch(**{**ask, name: 11})
        assert not torch.equal(first, other), name


def test_a_batch_is_the_same_on_every_machine_and_day():
    inputs, _ = ALPHABET.batch(0, 0, 0, batch=4, sequence=8)
    assert inputs[:, 0].tolist() == [101, 175, 149, 29]


def test_help_text_is_pythons_topics_in_the_order_of_their_names():
    topics = pydoc_data.topics.topics
    assert help_text().content == "\n".join(topics[name] for name in sorted(topics)).encode()


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    for path, reason in [
        (tmp_path / "missing.txt", "No such file"),
        (tmp_path, "not a regular file"),
        ("/dev/null", "not a regular file"),
        (tmp_path / "empty.txt", "holds 0 bytes"),
        ("a\0b", "no file can have this name"),
        (None, "cannot be read"),
    ]:
        with pytest.raises(Impossible, match=reason):
            read_text(path)


@pytest.mark.parametrize(
    "ask, mend",
    [
        (lambda: ByteText(b""), "holds 0 bytes"),
        (lambda: ByteText(b"x"), "holds 1 byte: take a text of at least 2"),
        (
            lambda: ByteText(b"short").batch(0, 0, 0, 1, 5),
            "a sequence of 5 reads 6: take a sequence of at most 4",
        ),
        (lambda: ALPHABET.batch(0, 0, 0, 0, 8), "batch=0.*take 1 or more"),
        (lambda: ALPHABET.batch(0, 0, 0, 1, 0), "sequence=0.*take 1 or more"),
    ],
)
def test_texts_that_cannot_be(ask, mend):
    with pytest.raises(Impossible, match=mend):
        ask()
