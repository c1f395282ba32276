"""Real data that needs no download."""

from .digits import Digits, digits
from .relations import Examples, Relations, vocabulary
from .scores import F1, f1
from .text import ByteText, chosen_text, help_text, read_text

__all__ = [
    "F1",
    "ByteText",
    "Digits",
    "Examples",
    "Relations",
    "chosen_text",
    "digits",
    "f1",
    "help_text",
    "read_text",
    "vocabulary",
]
