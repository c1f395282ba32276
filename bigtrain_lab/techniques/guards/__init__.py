"""What refuses a user's mistakes, apart from the lectures: one file a technique."""

from ...core import Impossible
from ...runtime.waits import ranks


def refuse(*cases: tuple[object, str]) -> None:
    """Impossible, with the sentence of the first case that holds. All sentences are made: of
    values whose text is cheap."""
    for holds, sentence in cases:
        if holds:
            raise Impossible(sentence)


def who(model) -> str:
    """This rank of a model's group, by its number in the world."""
    return f"rank {model.group.world_rank(model.group.rank)}"


def by_ranks(group, texts) -> str:
    """What each rank of the group says, with those together that say the same."""
    return "; ".join(f"{ranks(group.world_rank(r) for r, text in enumerate(texts) if text == one)}: "
                     f"{one}" for one in dict.fromkeys(texts) if one)
