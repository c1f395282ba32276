"""A knob is a setting that a person turns: a default, a range, a unit and one line of help, said
once.

The panel makes its controls from knobs, the command line its options, pydantic its checks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import Field

from .family import is_typed


@dataclass(frozen=True)
class Knob:
    """What a control needs to know. `choices` may be a function, so that an open family's menu
    stays open."""

    help: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    unit: str = ""
    choices: Callable[[], Iterable] | Iterable | None = None
    logarithmic: bool = False
    more: bool = False

    def menu(self) -> list | None:
        return (
            None
            if self.choices is None
            else list(self.choices() if callable(self.choices) else self.choices)
        )

    @property
    def family(self) -> dict[str, type]:
        """The members of the open family that the menu lists, by name; none of another menu."""
        members = self.choices() if callable(self.choices) else ()
        named = members.items() if isinstance(members, dict) else ()
        return {name: member for name, member in named if isinstance(member, type)}

    def typed(self) -> dict[str, type]:
        """The classes on the menu that were typed in a notebook's cell, by name."""
        return {name: member for name, member in self.family.items() if is_typed(member)}

    def but(self, **about):
        """The field of this knob where some of it differs: the default, or what is said here."""
        return knob(**{**vars(self), **about})


def knob(default, help: str, **about):
    """A pydantic field with a Knob behind it; `low` and `high` are enforced. `more=True` folds the
    control away."""
    control = Knob(help, **about)
    return Field(
        default,
        ge=control.low,
        le=control.high,
        description=help,
        json_schema_extra={"knob": control},
    )
