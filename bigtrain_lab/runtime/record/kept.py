"""What the small files of a run directory may hold. Reading one returns a valid value or raises a
sentence.

All reading of a run goes through here, log.py and results.py; the code behind them trusts the
values.
"""

import json
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    field_validator,
    model_validator,
)

from ...core import Impossible, refuse
from ...core.files import MOST_BYTES, clean_json, complaint, read_bounded

FORMAT = 2
MOST_RANKS = 256
Count = Annotated[int, Field(ge=1, le=10**6)]
Index = Annotated[int, Field(ge=0, lt=MOST_RANKS)]


class Host(BaseModel):
    """One of the machines of a run, and what is known of its clock."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: str
    ranks: Annotated[list[Index], Field(min_length=1)]
    error_s: Annotated[float, Field(ge=0, le=1e9)]


class Settings(BaseModel):
    """settings.json: what a run was asked for. The experiment validates its own `settings`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: Annotated[str, Field(max_length=1000)]
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)]
    steps: Count
    mesh: dict[str, Annotated[int, Field(ge=1, le=MOST_RANKS)]]
    clock: bool
    record: bool
    unit: Annotated[str, Field(max_length=40)]
    ticks_per_unit: Annotated[int, Field(ge=1, le=10**15)]
    watts: Annotated[FiniteFloat, Field(ge=0, le=1e9)] | None
    started: Annotated[str, Field(max_length=40)]
    launcher: tuple[str, Annotated[int, Field(ge=0, lt=2**31)], FiniteFloat] | None
    hosts: Annotated[list[Host], Field(max_length=MOST_RANKS)]
    settings: dict[str, Any]

    @field_validator("started")
    @classmethod
    def is_a_time(cls, text: str) -> str:
        refuse(
            (not 1970 < datetime.fromisoformat(text).year < 9999, "no run began then"),
            error=ValueError,
        )
        return text

    @model_validator(mode="after")
    def fit_together(self) -> "Settings":
        sizes = prod(self.mesh.values())
        refuse(
            (sizes != self.ranks, f"a mesh of {sizes} ranks is not one of {self.ranks}"),
            (
                any(rank >= self.ranks for host in self.hosts for rank in host.ranks),
                "a host has a rank that the run does not have",
            ),
            error=ValueError,
        )
        return self


def read_settings(directory: Path) -> dict:
    """What the run was asked for. Impossible: no run directory, another version, or damaged
    settings."""
    not_one = f"{directory} is not a run directory"
    try:
        data = clean_json(read_bounded(directory / "settings.json"))
        version = json.loads(data)["bigtrain-run"]
        if type(version) is not int:
            raise TypeError(version)
    except OSError as error:
        raise Impossible(
            f"{not_one}: choose one that holds a settings.json ({error.strerror})."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Impossible(f"{not_one}: its settings.json is not a run's.") from error
    refuse(
        (
            version != FORMAT,
            f"{directory} was written by run version {str(version)[:20]}, "
            f"this library reads {FORMAT}: run it again.",
        )
    )
    try:
        return Settings.model_validate_json(data).model_dump(exclude_unset=True)
    except ValueError as error:
        raise Impossible(
            f"The settings.json in {directory} is damaged ({complaint(error)}): "
            "run it again, or open another run."
        ) from error


def settings_json(about: dict) -> str:
    """The text of a settings.json; Impossible where it could not be read again."""
    text = json.dumps(about, indent=1, default=str)
    try:
        refuse(
            (len(text) > MOST_BYTES, f"they have more than {MOST_BYTES:,} bytes"),
            error=ValueError,
        )
        Settings.model_validate_json(clean_json(text.encode()))
    except ValueError as error:
        raise Impossible(
            f"These settings cannot be kept with a run ({complaint(error)}): choose others."
        ) from error
    return text


def returned(directory: Path, rank: int) -> bool:
    """Whether a rank's program has returned: then its result is kept."""
    return (directory / f"result-{rank}.npz").exists()
