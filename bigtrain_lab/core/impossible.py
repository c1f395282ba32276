"""The one error that a user's settings raise."""


class Impossible(ValueError):
    """What was asked for cannot be. Its message is one sentence that says why and what to
    change."""
