"""An open family: subclass it, give the class a `name`, and it is a member, in every menu at once.

The registry of the families is the one global of the library. It stores classes and reads their names late,
because cloudpickle rebuilds a class typed in a notebook before it sets the class's attributes.
"""

from importlib import import_module
from typing import ClassVar

from .impossible import Impossible


class Family:
    """Base of Schedule, Collective and Experiment.

    A subclass that sets `name` in its own body joins the nearest ancestor declared with `family="folder"`, the package
    whose files hold the library's members: it is imported when the members are first asked for.
    A class typed in a notebook (module `__main__`) replaces the one it redefines: same class name or same `name`.
    A second library class of one name, or a notebook class that takes a library member's name, is Impossible.
    """

    name: ClassVar[str]

    def __init_subclass__(cls, family: str | None = None, **kwargs):
        super().__init_subclass__(**kwargs)
        if family is not None:
            cls._members, cls._folder = [], family
            return
        typed = cls.__module__ == "__main__"
        if typed:
            cls._members[:] = [m for m in cls._members if not (m.__module__ == "__main__" and m.__qualname__ == cls.__qualname__)]
        if "name" in vars(cls):
            refuse_clash(cls)
        cls._members.append(cls)

    @classmethod
    def all(cls) -> dict[str, type]:
        """Every member by name, in order of definition; classes without a name of their own are abstract."""
        if cls._folder:
            import_module(cls._folder)
        members = {}
        for member in list(cls._members):
            if "name" in vars(member):
                refuse_clash(member)
                members[member.name] = member
        return members

    @classmethod
    def named(cls, name: str) -> type:
        """The member called `name`; Impossible, with the names there are, when there is none."""
        members = cls.all()
        if name not in members:
            raise Impossible(f"There is no {cls.__name__.lower()} called {name!r}: choose one of {', '.join(members)}.")
        return members[name]


def refuse_clash(cls: type) -> None:
    """Let a class replace its own earlier definition, or another one typed in the notebook, and nobody else's."""
    for member in [m for m in cls._members if m is not cls and vars(m).get("name") == cls.name]:
        itself = (member.__module__, member.__qualname__) == (cls.__module__, cls.__qualname__)
        if itself or member.__module__ == cls.__module__ == "__main__":
            cls._members.remove(member)
        else:
            raise Impossible(f"The name {cls.name!r} is taken by {member.__module__}.{member.__qualname__}: "
                             f"give {cls.__qualname__} another `name`.")
