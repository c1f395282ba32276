"""Pairs of sentences: what is generated is right, what is read is checked, batches hold each
sentence once."""

import sys
from types import SimpleNamespace

import pytest

from bigtrain_lab.core import Impossible
from bigtrain_lab.data import numerals
from bigtrain_lab.data.batches import Batches, cuts, in_order, padded, tokens_of
from bigtrain_lab.data.parallel import from_hugging_face, generated, of_pairs, read_pairs
from bigtrain_lab.data.tokens import BEGIN, END, PAD, UNKNOWN, Subwords, Words

SAID = {
    0: ("zero", "零"),
    10: ("ten", "十"),
    12: ("twelve", "十二"),
    20: ("twenty", "二十"),
    101: ("one hundred and one", "一百零一"),
    110: ("one hundred and ten", "一百一十"),
    1001: ("one thousand and one", "一千零一"),
    10_010: ("ten thousand and ten", "一万零一十"),
    105_000: ("one hundred and five thousand", "十万五千"),
    340_007: ("three hundred and forty thousand and seven", "三十四万零七"),
    900_500: ("nine hundred thousand five hundred", "九十万零五百"),
    10_203_040: ("ten million two hundred and three thousand and forty", "一千零二十万三千零四十"),
    100_005_000: ("one hundred million five thousand", "一亿零五千"),
    1_200_050_000: ("one billion two hundred million fifty thousand", "十二亿零五万"),
}
DATES = {
    (1905, 3, 4): (
        "the fourth of March nineteen oh five",
        "March the fourth nineteen oh five",
        "一九〇五年三月四日",
    ),
    (2000, 1, 12): (
        "the twelfth of January two thousand",
        "January the twelfth two thousand",
        "二〇〇〇年一月十二日",
    ),
    (1900, 12, 31): (
        "the thirty-first of December nineteen hundred",
        "December the thirty-first nineteen hundred",
        "一九〇〇年十二月三十一日",
    ),
    (2026, 11, 20): (
        "the twentieth of November twenty twenty-six",
        "November the twentieth twenty twenty-six",
        "二〇二六年十一月二十日",
    ),
}


def test_numbers_and_dates_are_said_as_they_are():
    assert {n: (numerals.english(n), numerals.chinese(n)) for n in SAID} == SAID
    assert {
        date: (*(numerals.said(date, way)[0] for way in (False, True)), numerals.said(date)[1])
        for date in DATES
    } == DATES
    several = [*range(12_000), *range(12_000, 10**8, 43_211)]
    assert all(
        len({say(n) for n in several}) == len(several)
        for say in (numerals.english, numerals.chinese)
    )


def test_no_held_out_pair_is_trained_on():
    """In either direction, of any size and seed; and every text is made of the vocabulary."""
    train = generated(seed=1, pairs=3000, digits=4).train
    held_out = generated(seed=2, pairs=10, held_out=600, digits=4).held_out
    assert len({chinese for _, chinese in train} | {chinese for _, chinese in held_out}) > 1500
    assert not {chinese for _, chinese in train} & {chinese for _, chinese in held_out}
    assert generated(seed=1, pairs=20, digits=4).train == train[:20]
    english = generated(pairs=300, held_out=20, into="english")
    texts = [text for pair in [*english.train, *english.held_out] for text in pair]
    assert all(english.vocabulary.decode(english.vocabulary.encode(text)) == text for text in texts)
    assert UNKNOWN not in sum((english.vocabulary.encode(text) for text in texts), [])


def test_words_and_subwords_give_the_text_back():
    texts = ["the old man saw a dog", "一只狗。", "the dog saw the old man"] * 5
    words, subwords = Words(texts), Subwords(texts, 270)
    for text in texts:
        assert subwords.decode([BEGIN, *subwords.encode(text), END, 9, 9]) == text
        assert words.decode([*words.encode(text), END, PAD]) == text
    for text in ("żółw 7?", "<end> <pad>"):  # no text is a mark
        assert subwords.decode(subwords.encode(text)) == text and min(subwords.encode(text)) >= 4
    assert len(subwords) == 270 and len(subwords.encode("the dog")) < len(b"the dog")
    spaced = Words(["in 1999 das café, über all"], spaces=True)
    assert spaced.decode(spaced.encode("das café, all")) == "das café, all"


def test_a_user_s_files_are_read(tmp_path):
    rows = [(f"sentence {n % 40}", f"Satz {n}") for n in range(80)]
    (tmp_path / "a.tsv").write_bytes(
        "\ufeff".encode() + "\r\n".join("\t".join(row) for row in rows).encode() + b"\r\n \r\n"
    )
    (tmp_path / "a.en").write_text("\n".join(source for source, _ in rows) + "\n", encoding="utf-8")
    (tmp_path / "a.de").write_text("\n".join(target for _, target in rows) + "\n", encoding="utf-8")
    one, two = (
        read_pairs(tmp_path / "a.tsv", vocabulary="words"),
        read_pairs(tmp_path / "a.en", tmp_path / "a.de", size=300),
    )
    assert (
        one.train == two.train
        and one.held_out == two.held_out
        and len(one.train) + len(one.held_out) == 80
    )
    assert len(one.held_out) == 8 and not {source for source, _ in one.train} & {
        source for source, _ in one.held_out
    }
    assert (
        not one.chinese
        and of_pairs([(f"{n}", "三" * 9) for n in range(30)], vocabulary="words").chinese
    )


BAD = [
    (b"", None, "is empty: give a file with one sentence a line."),
    (b"\n\n", None, "is empty"),
    (b"one\teins\ntwo\t\n", None, "Line 2 of {} has no target: give both sides"),
    (b"\teins\ntwo\tzwei", None, "Line 1 of {} has no source"),
    (b"one\ntwo\n", None, "Line 1 of {} has 0 tabs: write `source TAB target`"),
    (b"one\ntwo\n", b"eins\n", "has 2 lines and {} has 1"),
    (b"one\ntwo\n", b"", "{} is empty"),
    (b"one\ntwo\n", b"eins\n\n", "Line 2 of {} and {} has no target"),
    ("eins\tm\u00fcde\n".encode("latin-1"), None, "is not in UTF-8 (byte 6): save it as UTF-8"),
    ("one\teins\n".encode("utf-16"), None, "is not in UTF-8"),
    ("one\teins\n".encode("utf-16-le"), None, "is no text, or in UTF-16"),
    (b"one\teins\ntwo\t" + b"zwei " * 10_000, None, "Line 2 of {} has 10,000 words and"),
    (b"one\t" + "三".encode() * 20_000, None, "has 1 words and 20,000 letters"),
    (b"one\teins\none\tein\n", None, "has 1 different sources: give at least 2"),
]


@pytest.mark.parametrize("content, other, told", BAD, ids=range(len(BAD)))
def test_a_bad_file_is_one_sentence(content, other, told, tmp_path):
    files = [tmp_path / "pairs.txt"] + [tmp_path / "other.txt"] * (other is not None)
    for file, text in zip(files, (content, other)):
        file.write_bytes(text)
    with pytest.raises(Impossible) as refused:
        read_pairs(*files, vocabulary="words")
    parts = told.split("{}")
    assert all(part in str(refused.value) for part in parts) and "\n" not in str(refused.value)


def test_what_is_absent_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(Impossible, match="cannot be read .No such file"):
        read_pairs(tmp_path / "nothing.tsv")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        Impossible, match="^Subwords need the package tokenizers, which is not installed: install"
    ):
        of_pairs([("a", "b"), ("c", "d")])


def test_a_data_set_is_fetched_on_purpose_only(monkeypatch):
    def load_dataset(name, config, split, download_config):
        if download_config.local_files_only:
            raise ConnectionError("no copy")
        return [{"translation": {"en": f"{n}", "de": f"{n} auch"}} for n in range(20)]

    monkeypatch.setitem(
        sys.modules,
        "datasets",
        SimpleNamespace(load_dataset=load_dataset, DownloadConfig=SimpleNamespace),
    )
    with pytest.raises(Impossible, match="opus is not to be had .*: fetch it once with fetch=True"):
        from_hugging_face("opus", "en", "de")
    assert len(from_hugging_face("opus", "en", "de", fetch=True, vocabulary="words").train) == 18
    with pytest.raises(Impossible, match="^opus has no translation from en to fr"):
        from_hugging_face("opus", "en", "fr", fetch=True)


def test_batches_hold_each_sentence_once_in_another_order_each_epoch():
    pairs = generated(pairs=700, digits=5).encoded()
    batches = Batches(pairs, 300, parts=3, seed=4)
    epochs = [batches.epoch(number) for number in (0, 1, 0)]
    assert all(
        sorted(n for batch in each for n in batch) == list(range(700)) and len(each) == len(batches)
        for each in epochs
    )
    same = [[batch.tolist() for batch in each] for each in epochs]
    assert (
        same[0] == same[2]
        and same[0] != same[1]
        and sorted(map(sorted, same[0])) != sorted(map(sorted, same[1]))
    )
    for number, batch in enumerate(same[1]):
        parts = [batches.sentences(3 * (len(batches) + number) + part) for part in range(3)]
        assert parts == [batch[part::3] for part in range(3)] and batches.place(
            len(batches) + number
        ) == (1, number)
        assert len(batch) * max(max(map(len, pairs[n])) + 1 for n in batch) <= 300


def test_a_micro_batch_is_padded_and_knows_its_words():
    pairs = [([5, 6, 7], [8]), ([5], [8, 9]), ([5, 6], [9, 9, 9, 9])]
    source, target, (so_far,) = padded(pairs)
    assert source.tolist() == [[5, 6, 7, END], [5, END, PAD, PAD], [5, 6, END, PAD]]
    assert target.tolist()[:2] == [
        [8, END, PAD, PAD, PAD],
        [8, 9, END, PAD, PAD],
    ] and so_far.tolist()[0] == [BEGIN, 8, PAD, PAD, PAD]
    batches = Batches(pairs, 5, parts=2)  # a batch is one sentence: the second micro-batch has none
    assert (
        sorted(batches.words(2 * n) for n in range(3)) == [2, 3, 5]
        and batches.words(1) == tokens_of(batches.sample(1)) == 0
    )
    assert in_order(pairs, 2) == [[1, 2], [0]] and cuts([1, 1, 2, 3, 3, 9], 6) == [0, 3, 5]
    with pytest.raises(
        Impossible, match="^A sentence of 5 tokens is more than a batch of 4: take larger batches"
    ):
        Batches(pairs, 4)
