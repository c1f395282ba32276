"""Prove the galleries: every right answer passes, every wrong one fails with its own sentence.

    python -m bigtrain_lab.grading.proof 20          on the seeds 0 to 19, with a table (make grading-proof)

The library's own answers, as a student's, must be refused, and the others pass over the fence.
"""

import sys
import time
from collections.abc import Iterator

from .box import Box
from .likeness import Topic


def faults(topic: type[Topic], seed: int) -> Iterator[str]:
    """What is wrong with a topic's own gallery on a seed, a sentence each."""
    with Box(topic, seed, texts=topic.texts()) as box:
        rows = {name: box.rows(name) for name in topic.texts()}
    rights, wrongs = ([rows[name] for name in topic.right], {name: rows[name] for name in topic.wrong})
    longest = max(map(len, rights))
    for name in topic.right:
        if rows[name][-1].raised or len(rows[name]) < longest:
            yield f"{topic.name}, seed {seed}: the right answer {name!r} failed: {rows[name][-1].told}"
        elif found := topic.diagnosis(rows[name], rights[:1], wrongs, seed):
            yield f"{topic.name}, seed {seed}: the right answer {name!r} is unlike the first: {' '.join(found)}"
    for name, wrong in topic.wrong.items():
        found = topic.diagnosis(rows[name], rights, wrongs, seed)
        if not found:
            yield f"{topic.name}, seed {seed}: the wrong answer {name!r} passes."
        elif found[0] != wrong.sentence:
            yield f"{topic.name}, seed {seed}: the wrong answer {name!r} is told {found[0]!r}, not {wrong.sentence!r}."


def main(seeds: int) -> int:
    print("| topic | right answers | wrong answers | seeds | faults | seconds a seed |\n|---|---|---|---|---|---|")
    told = []
    for name, topic in Topic.all().items():
        began, found = time.monotonic(), [fault for seed in range(seeds) for fault in faults(topic, seed)]
        told += found
        print(f"| {name} | {len(topic.right)} | {len(topic.wrong)} | {seeds} | {len(found)} | {(time.monotonic() - began) / seeds:.1f} |", flush=True)
    print(*told, sep="\n")
    return bool(told)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
