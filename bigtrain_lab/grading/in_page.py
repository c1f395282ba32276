"""Check an exercise in a page, where Python has no torch: the text of an editor, in the scenes and
with the sentences of a notebook's check."""

import json

from .known import Here
from .likeness import Topic
from .text import Piece, sliced

EXERCISES = (  # those of schedules, messages and plans, which need numbers alone
    "gpipe",
    "1f1b",
    "planner",
    "best-plan",
    "timing",
    "fusion",
    "name-the-bug",
)


def checked(exercise: str, text: str, seed: int) -> str:
    """What is wrong with the answer that a text defines, what it printed, and how far each step is,
    as JSON."""
    topic = Topic.named(exercise)
    whole = [Piece(1, f"{text}\nanswer = {topic.called()}")]  # whose error names its line
    pieces = sliced([text], topic.called()) or whole
    findings, printed, _, _, ladder = topic.text_looked_at(pieces, seed, played=Here())
    return json.dumps({"findings": findings, "printed": printed, "ladder": ladder})
