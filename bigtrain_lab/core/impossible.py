"""The one error that a user's settings raise."""


class Impossible(ValueError):
    """What was asked for cannot be. Its message is one sentence that says why and what to
    change."""


def refuse_counts(of: str, counts: dict) -> None:
    """Impossible where one of the numbers that a plan `of` this sort is made of is none."""
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise Impossible(
                f"{name.replace('_', '-')} is {value!r}: a {of} needs a whole number of at least 1."
            )
