"""What refuses a user's mistakes, apart from the lectures: one file a technique."""

from ...core import Impossible


def refuse(*cases: tuple[object, str]) -> None:
    """Impossible, with the sentence of the first case that holds. All sentences are made: of
    values whose text is cheap."""
    for holds, sentence in cases:
        if holds:
            raise Impossible(sentence)
