"""The border where the words of panels and pages leave: widgets, HTML, figures and the player speak
the reader's language, and programs read English from them."""

import re
from html import escape, unescape

from ..core.said import catalogue, language, pattern, said, templates
from .packed import LOOK

# the words of HTML: of elements, and of what the pointer shows; a style is none
WORDS = re.compile(
    r"<style.*?</style|<script.*?</script|(?<=>)[^<>]+"
    r'|(?:(?<= title=")|(?<= aria-label=")|(?<= data-sure="))[^"]+',
    re.DOTALL,
)


def in_html(text: str) -> str:
    """HTML with its words in the reader's language."""
    return WORDS.sub(piece, f">{text}<")[1:-1] if language() else text


def piece(found: re.Match) -> str:
    words = unescape(found[0])
    told = words if found[0].startswith("<") else said(words)
    return found[0] if told == words else escape(told)


def all_said(value, say=said, names=frozenset(), name: str = ""):
    """The same value, with each text that it holds in the reader's language; in dicts, only what
    stands under one of these `names`, where there are any."""
    if isinstance(value, dict):
        return {key: all_said(each, say, names, key) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [all_said(each, say, names, name) for each in value]
    return say(value) if isinstance(value, str) and (not names or name in names) else value


def look() -> dict:
    """The player's look, its words in the reader's language, with (regular expression, translation)
    of those that it makes by itself."""
    return all_said(LOOK) | {
        "words": [
            (pattern(text).pattern, catalogue(language(), "player")[text])
            for text in templates(language(), "player")
        ]
    }


# traits of widgets
SPOKEN = dict.fromkeys(("description", "tooltip", "tooltips", "note", "placeholder"), said) | {
    "html": in_html
}
OF_KINDS = {
    "HTML": {"value": in_html},
    "Label": {"value": said},
    "ToggleButtons": {"_options_labels": said},
}


class Spoken:
    """Of a widget: the browser is told its words in the reader's language."""

    def get_state(self, *args, **options):
        state = super().get_state(*args, **options)
        return state | {
            name: all_said(state[name], say)
            for name, say in (SPOKEN | OF_KINDS.get(type(self).__name__, {})).items()
            if name in state
        }


def spoken(kind: type) -> type:
    """This kind of widget, Spoken."""
    return type(kind.__name__, (Spoken, kind), {})
