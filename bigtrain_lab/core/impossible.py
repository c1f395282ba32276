"""The one error that a user's settings raise."""


class Impossible(ValueError):
    """What was asked for cannot be. Its message is one sentence that says why and what to
    change."""


def refuse(*cases: tuple[object, str], error: type[Exception] = Impossible) -> None:
    """Impossible, or another error, with the sentence of the first case that holds. All sentences
    are made: of values whose text is cheap."""
    for holds, sentence in cases:
        if holds:
            raise error(sentence)


def refuse_counts(of: str, counts: dict) -> None:
    """Refuse a count that is no whole number of at least 1; `of`: the sort of plan."""
    refuse(
        *(
            (
                not isinstance(value, int) or value < 1,
                f"{name.replace('_', '-')} is {value!r}: a {of} needs a whole number of at least"
                " 1.",
            )
            for name, value in counts.items()
        )
    )


def refuse_unknown(what: str, name, known) -> None:
    """Refuse a name that is none of those known; `what`: "figure called"."""
    refuse((name not in known, f"There is no {what} {name!r}: choose one of {', '.join(known)}."))
