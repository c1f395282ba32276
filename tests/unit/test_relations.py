"""Sentences that state relations: functions of their arguments, unbalanced, with names and phrases
kept for dev; and F1."""

import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.data import Relations, f1
from bigtrain_lab.data.grammar import CLASSES, DENY, NEVER, NONE
from bigtrain_lab.data.relations import (
    E1,
    E1_END,
    E2,
    E2_END,
    LONGEST,
    SHARES,
    names,
    numbers,
    sentence,
    vocabulary,
)

MANY = [sentence(0, n) for n in range(3000)]


def between(words, start, end):
    return " ".join(words[words.index(start) + 1 : words.index(end)])


def test_a_sentence_is_a_function_of_its_arguments():
    assert MANY[17] == sentence(0, 17)
    assert len({sentence(0, 17), sentence(0, 18), sentence(1, 17), sentence(0, 17, dev=True)}) == 4


def test_each_has_its_marks_in_order_around_two_names_of_its_split():
    for sentences, dev in (
        (MANY, False),
        ([sentence(0, n, dev=True) for n in range(3000)], True),
    ):
        known = {name for kind in ("person", "firm", "place") for name in names(kind, dev)}
        for one in sentences:
            assert [one.words.count(mark) for mark in (E1, E1_END, E2, E2_END)] == [1] * 4
            assert one.words.index(E1) < one.words.index(E2)
            assert {between(one.words, E1, E1_END), between(one.words, E2, E2_END)} <= known
            assert len(one.words) <= LONGEST and not {"~", "{s}", "{o}"} & set(one.words)
            assert not any(c in word for word in one.words for c in "<>{}~")


def test_no_name_is_in_both_splits_and_their_words_are():
    for kind in ("person", "firm", "place"):
        train, dev = set(names(kind, False)), set(names(kind, True))
        assert not train & dev and 0.15 < len(dev) / len(train | dev) < 0.25
        assert {w for name in dev for w in name.split()} <= {
            w for name in train for w in name.split()
        }


def test_the_shares_of_the_classes_are_as_declared():
    counts = torch.bincount(torch.tensor([one.label for one in MANY]), minlength=len(CLASSES))
    expected = torch.tensor(SHARES) / sum(SHARES) * len(MANY)
    assert (
        (counts - expected).square() / expected
    ).sum() < 45.3  # chi squared, 20 degrees of freedom, 1 in 1,000
    assert counts[0] > 30 * counts[-1]


def test_what_a_lone_clause_says_follows_from_its_denials():
    """One denial makes no relation; none and two keep it. The same words without the order would
    not tell."""
    seen = set()
    for one in MANY:
        if one.frame == "alone":
            denials = (NEVER in one.words) + any(str(one).startswith(opening) for opening in DENY)
            assert (CLASSES[one.label] == NONE) == (denials == 1), one
            seen.add(denials)
    assert seen == {0, 1, 2}


def test_examples_are_numbers_padded_to_one_length():
    ids, keep, marks, labels = Relations(train_size=50, dev_size=20).train
    assert ids.shape == keep.shape == (50, LONGEST) and marks.shape == (50, 2)
    for row in range(50):
        assert [vocabulary()[i] for i in ids[row][keep[row]]] == list(MANY[row].words)
        assert (ids[row][~keep[row]] == 0).all() and labels[row] == MANY[row].label
        assert (ids[row][marks[row]] == torch.tensor([numbers()[E1], numbers()[E2]])).all()


def test_a_batch_is_a_function_of_its_arguments():
    data, again = Relations(train_size=50), Relations(train_size=50)
    one, two = data.batch(3, 8), again.batch(3, 8)
    assert all(map(torch.equal, one, two)) and len(one.labels_B) == 8
    assert not torch.equal(one.ids_BS, data.batch(3, 8, micro_batch=1).ids_BS)


# F1


def test_f1_is_that_of_a_count_by_hand():
    """Class 1: TP 2, FP 1, FN 1. Class 2: TP 1, FP 1, FN 0. Class 3: FN 1. Class 0 is left out."""
    found = f1(torch.tensor([1, 1, 0, 2, 2, 1, 0]), torch.tensor([1, 1, 1, 2, 3, 0, 0]), [1, 2, 3])
    assert found.each == (4 / 6, 2 / 3, 0.0)
    assert found.micro == pytest.approx(2 * 3 / (2 * 3 + 2 + 2))
    assert found.macro == pytest.approx((4 / 6 + 2 / 3) / 3)


@pytest.mark.parametrize(
    "answers, classes, told", [(3, [1], "3 answers and 2 labels"), (2, [], "at least one class")]
)
def test_what_cannot_be_counted_is_refused(answers, classes, told):
    with pytest.raises(Impossible, match=told):
        f1(torch.zeros(answers), torch.zeros(2), classes)
