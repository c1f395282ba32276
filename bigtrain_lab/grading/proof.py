"""A gallery holds when every right answer is like others, and every wrong one fails with its own
sentence."""

from collections.abc import Iterator
from functools import partial

from . import known
from .box import Row
from .likeness import BEYOND, Judged, Topic, enough, same


def faults(topic: type[Topic], seed: int) -> Iterator[str]:
    """What is wrong with a topic's own gallery on a seed, a sentence each."""
    rows = topic.reference_rows(seed, None)
    rights = [rows[name] for name in topic.right]
    wrongs = known.rows(topic, seed, topic.wrong_texts(), partial(enough, rights, None, 0))
    twins = {  # at their first difference: what they do after it tells them apart
        name: topic.wrong[name].text
        for name, own in wrongs.items()
        if sum(len(own) == len(each) and same(own[-1], each[-1]) for each in wrongs.values()) > 1
    }
    if twins:
        wrongs |= known.rows(topic, seed, twins, partial(enough, rights, None, BEYOND))

    def told(shown: list[Row], others: list[list[Row]]) -> list[str]:
        return Judged(topic, seed, None, None, shown, others).told(lambda *_: wrongs)

    for name in topic.right:
        failed = next((row for row in rows[name] if row.raised), rows[name][-1])
        if failed.raised or len(rows[name]) < max(map(len, rights)):
            yield f"{topic.name}, seed {seed}: the right answer {name!r} failed: {failed.told}"
        elif found := told(rows[name], [rows[other] for other in topic.right if other != name]):
            yield (
                f"{topic.name}, seed {seed}: the right answer {name!r} is unlike all others:"
                f" {' '.join(found)}"
            )
    for name, wrong in topic.wrong.items():
        found = told(wrongs[name], rights)
        if not found:
            yield f"{topic.name}, seed {seed}: the wrong answer {name!r} passes."
        elif found[0] != wrong.sentence:
            yield (
                f"{topic.name}, seed {seed}: the wrong answer {name!r} is told {found[0]!r}, not"
                f" {wrong.sentence!r}."
            )
