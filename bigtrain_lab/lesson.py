"""What a lesson asks of its reader, before it shows."""

from IPython.core.error import StdinNotImplementedError

NOBODY = "nothing"


def predict(question: str, *names: str) -> str | dict[str, str]:
    """What the reader types; of several `names` {name: what is typed}. The cells below wait, and the
    answer stays in the reader's own copy; nobody marks it. "nothing" where nobody can type."""
    if names:
        print(question)
        return {name: predict(f"{name}:") for name in names}
    try:
        return input(f"{question} ").strip() or NOBODY
    except (EOFError, StdinNotImplementedError):  # a test, or a build
        print(question)
        return NOBODY
