"""An open family: subclass it, give the class a `name`, and it is a member, in every menu at once.

The registry of the families is the one global of the library. It stores classes and reads their
names late, because cloudpickle rebuilds a class typed in a notebook before it sets the class's
attributes.
"""

import inspect
import traceback
import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar

from .impossible import Impossible

_broken: dict[str, str] = {}  # module of a package of members -> why it does not import


def import_files(package: str, folders) -> None:
    """Import every file of a package of members. One that fails keeps no other out: `Family.all`
    says which, where and why."""
    for module in iter_modules(folders):
        name = f"{package}.{module.name}"
        load_member(name, module.module_finder.path, partial(import_module, name))


def load_member(module: str, folder: str, load: Callable[[], object]) -> None:
    """Load what defines a member, or note why that failed, for `Family.all` to tell."""
    try:
        load()
    except Exception as error:
        why = f"{type(error).__name__}: {getattr(error, 'msg', error)}"
        _broken[module] = (
            f"{where(error, folder)}: {why}; nothing of this file is there until it is mended."
        )


def where(error: Exception, folder: str) -> str:
    """The innermost line of a file in this folder that the error came through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    places = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return next((place for place in reversed(places) if place.startswith(folder)), places[-1])


class Family:
    """Base of Schedule, Collective and Experiment.

    A subclass that sets `name` in its own body joins the nearest ancestor declared with
    `family="folder"`, the package whose files hold the library's members: it is imported when the
    members are first asked for. A class typed in a notebook (module `__main__`) replaces the one it
    redefines: same class name or same `name`. A second library class of one name, or a notebook
    class that takes a library member's name, is Impossible. A class without a name of its own is
    abstract, a base for others; one that could be a member is told when members are asked for.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, family: str | None = None, **kwargs):
        super().__init_subclass__(**kwargs)
        if family is not None:
            cls._members, cls._folder = [], family
            return
        if is_typed(cls):
            cls._members[:] = [
                m for m in cls._members if not (is_typed(m) and m.__qualname__ == cls.__qualname__)
            ]
        if "name" in vars(cls):
            refuse_clash(cls)
        cls._members.append(cls)

    @classmethod
    def all(cls) -> dict[str, type]:
        """Every member by name, in order of definition. Warns of files that do not import and of
        members that lack a name."""
        if cls._folder:
            import_module(cls._folder)
        for sentence in cls._missing():
            warnings.warn(sentence, stacklevel=1)  # of this line, so each is told once
        members = {}
        for member in list(cls._members):
            if "name" in vars(member) and member.__module__ not in _broken:
                refuse_clash(member)
                members[member.name] = member
        return members

    @classmethod
    def _missing(cls) -> list[str]:
        """What is not among the members and was meant to be, a sentence each."""
        broken = [
            sentence
            for module, sentence in _broken.items()
            if cls._folder and module.startswith(cls._folder + ".")
        ]
        return broken + [
            f'{m.__qualname__} has no name of its own, so it is in no menu: write name = "..." in'
            " the class."
            for m in cls._members
            if is_nameless(m, cls._folder)
        ]

    @classmethod
    def named(cls, name: str) -> type:
        """The member called `name`; Impossible, with the names there are, when there is none."""
        members = cls.all()
        if name not in members:
            others = "".join(f" {sentence}" for sentence in cls._missing())
            raise Impossible(
                f"There is no {cls.__name__.lower()} called {name!r}: choose one of"
                f" {', '.join(members)}.{others}"
            )
        return members[name]


class ByFields:
    """A member whose settings are its dataclass's fields."""

    def __getstate__(self):  # what was derived stays behind
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def options(cls) -> set[str]:
        """The settings that this member has beyond those of the whole family."""
        family = next(base for base in cls.__mro__ if "_folder" in vars(base))
        return {each.name for each in fields(cls)} - {each.name for each in fields(family)}


def is_typed(cls: type) -> bool:
    """Whether the class was typed in a notebook's cell, or in a script."""
    return getattr(cls, "__module__", None) == "__main__"


def refuse_clash(cls: type) -> None:
    """Let a class replace its own earlier definition, or another one typed in the notebook, and
    nobody else's."""
    for member in [m for m in cls._members if m is not cls and vars(m).get("name") == cls.name]:
        itself = (member.__module__, member.__qualname__) == (cls.__module__, cls.__qualname__)
        if itself or is_typed(member) and is_typed(cls):
            cls._members.remove(member)
        else:
            raise Impossible(
                f"The name {cls.name!r} is taken by {member.__module__}.{member.__qualname__}: "
                f"give {cls.__qualname__} another `name`."
            )


def is_nameless(cls: type, folder: str) -> bool:
    """Whether a class of the library or a notebook has no name of its own, though it is whole and
    no base of another."""
    return (
        (is_typed(cls) or bool(folder) and cls.__module__.startswith(folder + "."))
        and "name" not in vars(cls)
        and not inspect.isabstract(cls)
        and not cls.__subclasses__()
    )
