"""Check an exercise in a page, where Python has no torch: the text of an editor, in the scenes and
with the sentences of a notebook's check."""

import json
from contextlib import redirect_stdout
from io import StringIO

from .box import MOST_PRINTED
from .known import Here
from .likeness import Topic
from .text import Piece, sliced

# Their scenes, and their right answers, need neither torch nor numpy.
EXERCISES = ("gpipe", "1f1b", "name-the-bug", "planner", "fusion")


def checked(exercise: str, text: str, seed: int) -> str:
    """What is wrong with the answer that a text defines, what it printed, and how far each step is,
    as JSON."""
    topic = Topic.named(exercise)
    whole = [Piece(1, f"{text}\nanswer = {topic.called()}")]  # whose error names its line
    pieces = sliced([text], topic.called()) or whole
    with redirect_stdout(StringIO()) as said:
        findings, _, _, _, ladder = topic.text_looked_at(pieces, seed, played=Here())
    return json.dumps(
        {"findings": findings, "printed": said.getvalue()[:MOST_PRINTED], "ladder": ladder}
    )
