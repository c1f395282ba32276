"""A check raises its first finding, as a sentence, and so does a student's code whatever it raises."""

from collections.abc import Callable, Iterable

from ..core import Impossible


class Wrong(Exception):
    """A finding: the sentence."""


def first_finding(checks: Iterable[Callable], whose: str, advice: str) -> list[str]:
    """The sentence of the first check that raises one, or returns some in a list; empty where none does."""
    try:
        for check in checks:
            if found := check():
                return found
    except (Wrong, Impossible) as finding:
        return [str(finding)]
    except Exception as error:  # a student's code: whatever it raises is a finding
        return [f"{whose} raised {type(error).__name__}: {error}. {advice}"]
    return []
