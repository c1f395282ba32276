"""Real data that needs no download."""

from .text import ByteText, help_text, read_text

__all__ = ["ByteText", "help_text", "read_text"]
