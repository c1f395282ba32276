"""This machine's speeds, measured in a short run and kept for the next time."""

from ..core import Hardware


def this_machine(measure: bool = True) -> Hardware | None:
    """The profile "this machine"."""
    raise NotImplementedError
