"""What a panel shows where something is wrong: the sentence, and for a run that failed what its ranks were doing."""

from html import escape


def trouble(problem: str, run=None) -> str:
    """`run`: the run that failed, where it is a run that the problem is about."""
    return f'<div class="btl-trouble" role="alert">{escape(problem)}</div>'
