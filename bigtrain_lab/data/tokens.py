"""Text as numbers, and back: words and characters for the generated task, trained subwords for a
user's own text.

    0 padding   1 begins a target   2 ends a sentence   3 is unknown   4 and more: a piece of text

One vocabulary serves both languages. Subwords are pairs merged by frequency (Sennrich et al. 2016,
arXiv:1508.07909, section 3.2) over bytes, so that no text is unknown; they need the package
tokenizers.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

from bigtrain_lab.core import Impossible, refuse

PAD, BEGIN, END, UNKNOWN = RESERVED = range(4)
PIECE, PIECE_OR_SPACE = re.compile(r"[A-Za-z]+|[^\sA-Za-z]"), re.compile(r"[A-Za-z]+|[^A-Za-z]")
BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z]) (?![A-Za-z])|(?<![A-Za-z]) ")


class Words:
    """A word of Latin letters, or any other character, is a token; those of the texts are known.
    With `spaces` a space is one too, and every known text comes back as it was; without, words are
    spaced, characters are not."""

    def __init__(self, texts: Iterable[str], spaces: bool = False):
        self.piece, self.spaces = PIECE_OR_SPACE if spaces else PIECE, spaces
        self.pieces = sorted({piece for text in texts for piece in self.piece.findall(text)})
        self.numbers = {piece: number for number, piece in enumerate(self.pieces, len(RESERVED))}

    def __len__(self):
        return len(RESERVED) + len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return [self.numbers.get(piece, UNKNOWN) for piece in self.piece.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to its end."""
        known = len(RESERVED)
        pieces = (self.pieces[i - known] if i >= known else "?" for i in words_of(ids))
        return "".join(pieces) if self.spaces else BETWEEN_WORDS.sub("", " ".join(pieces))


class Subwords:
    """At most `size` tokens, trained on the texts."""

    def __init__(self, texts: Iterable[str], size: int = 8000):
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ImportError as error:
            raise Impossible(
                "Subwords need the package tokenizers, which is not installed: "
                "install bigtrain_lab[tokens], or take vocabulary='words'."
            ) from error
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        refuse(
            (
                size < (fewest := len(RESERVED) + len(alphabet)),
                f"{size} subwords are fewer than {fewest}, those of bytes: take more.",
            )
        )
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=size,
                special_tokens=["<pad>", "<begin>", "<end>", "<unknown>"],
                initial_alphabet=alphabet,
                show_progress=False,
            ),
        )
        self.tokenizer.encode_special_tokens = True  # "<end>" in a text is text

    def __len__(self):
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([i for i in words_of(ids) if i not in RESERVED])


def words_of(ids: Sequence[int]) -> list[int]:
    """Up to the end of the sentence, without padding."""
    return [i for i in takewhile(lambda i: i != END, map(int, ids)) if i != PAD]
