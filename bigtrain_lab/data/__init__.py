"""Real data that needs no download."""

from .. import offered
from .digits import Digits, digits

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "relations": ("Examples", "Relations", "vocabulary"),
        "scores": ("F1", "f1"),
        "text": ("ByteText", "chosen_text", "help_text", "read_text"),
    },
)
__all__ += ["Digits", "digits"]
