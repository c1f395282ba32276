"""What a student's answer cannot reach in its process: answers that are there already, and other
processes.

    in memory    the library's modules are gone but for those that the exercise allows and those
                 without answers; classes that are an answer are emptied, functions replaced, the
                 galleries' texts deleted
    in files     no source of this library, nor of what the exercise forbids, can be opened, by
                 whatever name
    by looking   frames of its callers, objects that the collector knows
    elsewhere    processes, and C functions by name

Python tells an audit hook (PEP 578) of each such event; no code can remove one. An answer that
reaches over the fence ends there, with a sentence. What the fence does not stop: machine code that
an answer brings along.
"""

import _posixsubprocess
import linecache
import os
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from pkgutil import resolve_name, walk_packages
from types import FunctionType

OURS = str(Path(__file__).parents[1])
PACKAGE = __package__.split(".")[0]
ANSWERS = (
    "techniques",
    "order.schedules",
    "order.collectives",
    "order.recompute",
    "experiments",
)  # packages that have some
WITHOUT_ANSWERS = (
    "core",
    "order.plan",
    "order.schedule",
    "order.simulate",
    "runtime",
)  # modules that may stay
METHODS = (FunctionType, classmethod, staticmethod, property)
FRAMES = ("tb_frame", "gi_frame", "cr_frame")
INSIDES = ("__code__", "__defaults__", "__kwdefaults__")
LOOKS = ("sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile")
COLLECTOR = ("gc.get_objects", "gc.get_referrers", "gc.get_referents")
STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "pty.spawn",
    "os.kill",
    "os.killpg",
)
NATIVE = ("ctypes.dlopen", "ctypes.dlsym")
LOOKING = "Your answer looks at the code that calls it: compute from what it is given."
STARTING = "Your answer reaches for other processes: compute in this one."
CALLING = "Your answer calls into C by name: compute in Python and torch."


class Refused(Exception):
    """A sentence on what an answer may not do."""


def loaded(carried: bytes, topic: type, refuse: Callable[[str], None]):
    """The answer, out of its bytes, behind the fence; `refuse(sentence)` ends the process."""
    for name in topic.allows:
        for each in walk_packages(getattr(import_module(name), "__path__", ()), f"{name}."):
            import_module(each.name)
    hidden: dict[tuple, str] = {}
    for path in texts():
        hide(
            path,
            ".".join((PACKAGE, *path.relative_to(OURS).with_suffix("").parts)).removesuffix(
                ".__init__"
            ),
            hidden,
        )
    emptied: dict[type, str] = {}
    for name in topic.forbids:
        above, _, last = name.rpartition(".")
        holder = resolve_name(above)
        hide(
            Path(sys.modules[getattr(getattr(holder, last), "__module__", above)].__file__),
            name,
            hidden,
        )
        take(holder, last, name, refuse, emptied)
    forget(topic, refuse, emptied)
    _posixsubprocess.fork_exec = lambda *_: refuse(STARTING)  # of which Python tells nobody
    sys.addaudithook(hook(topic, hidden, refuse))
    answer = pickle.loads(carried)
    if isinstance(answer, type) and answer in emptied:
        refuse(taken(emptied[answer]))
    return answer


# -- in memory -------------------------------------------------------------------------------------


def take(above, last: str, name: str, refuse, emptied: dict) -> None:
    """Empty a class, which many hold; forbid a method; put an empty class in the place of a
    function."""
    thing = getattr(above, last)
    if isinstance(thing, type):
        return empty(thing, name, refuse, emptied)
    if isinstance(above, type):
        return setattr(above, last, lambda *_, **__: refuse(taken(name)))
    home, _, attribute = name.rpartition(".")
    stand_in = type(attribute, (), {"__module__": home})
    empty(stand_in, name, refuse, emptied)
    for module in list(sys.modules.values()):
        for known_as, other in list(getattr(module, "__dict__", {}).items()):
            if other is thing:
                setattr(module, known_as, stand_in)


def empty(cls: type, name: str, refuse, emptied: dict) -> None:
    """Let nobody make, use or inherit from this class."""

    def never(*_, **__):
        refuse(taken(name))

    emptied[cls] = name
    for each in {
        "__init__",
        *(each for each, method in vars(cls).items() if isinstance(method, METHODS)),
    }:
        type.__setattr__(cls, each, never)
    type.__setattr__(cls, "__init_subclass__", classmethod(never))


def forget(topic: type, refuse, emptied: dict) -> None:
    """Drop the library's modules that the exercise does not allow, empty their classes, delete the
    galleries."""
    for name in [n for n in sys.modules if n.startswith(PACKAGE + ".") and not allows(topic, n)]:
        above, _, last = name.rpartition(".")
        module = sys.modules.pop(name)
        if vars(sys.modules.get(above, module)).get(last) is module:
            delattr(sys.modules[above], last)
        if name.startswith(f"{PACKAGE}.grading"):
            strip(module)
        elif lies_in(name, ANSWERS):
            for thing in [
                t for t in vars(module).values() if isinstance(t, type) and t.__module__ == name
            ]:
                empty(thing, f"{name}.{thing.__qualname__}", refuse, emptied)


def strip(module) -> None:
    """Empty the galleries of a module's topics."""
    for thing in vars(module).values():
        if isinstance(thing, type) and "probe" in vars(thing):
            thing.right, thing.wrong, thing.hints = {}, {}, ()


def lies_in(name: str, parts: tuple[str, ...]) -> bool:
    """Whether a module is one of these parts of the package, or lies in one."""
    return any(f"{name}.".startswith(f"{PACKAGE}.{part}.") for part in parts)


def allows(topic: type, name: str) -> bool:
    return (
        name in (PACKAGE, f"{PACKAGE}.order")
        or lies_in(name, WITHOUT_ANSWERS)
        or any(
            (name + ".").startswith(each + ".") or each.startswith(name + ".")
            for each in topic.allows
        )
    )


def taken(name: str) -> str:
    return f"Your answer takes {name}, which is not at hand here: write it yourself."


# -- what the hook hears ---------------------------------------------------------------------------


def texts() -> list[Path]:
    """The files of the library that hold answers, or may."""
    return [*Path(OURS).rglob("*.py"), *Path(OURS).rglob("wrong.md")]


def hide(path: Path, whose: str, hidden: dict) -> None:
    """Note a source and its compiled form, by what names a file whatever it is called. Torch itself
    asks for the lines of its callers: they have none."""
    linecache.cache[str(path)] = 0, None, [], str(path)
    for each in (path, Path(cache_from_source(str(path)))):
        if each.exists():
            about = each.stat()
            hidden[about.st_dev, about.st_ino] = whose


def hook(topic: type, hidden: dict, refuse) -> Callable[[str, tuple], None]:
    """What Python calls at every event. Nothing else refers to it, so no answer can find it."""
    inside, sources = False, {path.name for path in texts()}

    def against(event: str, details: tuple) -> str:
        if event in LOOKS or event == "object.__getattr__" and details[1] in FRAMES:
            return LOOKING if is_asked_by_answer("inspect") else ""
        if event in COLLECTOR:
            return LOOKING
        if (
            event == "object.__setattr__"
            and details[1] in INSIDES
            and is_imported(details[0].__code__, details[0].__globals__)
        ):
            return f"Your answer changes what {details[0].__qualname__} does: leave it as it is."
        if event in STARTS or event == "import" and details[0] == "_posixsubprocess":
            return STARTING
        if event in NATIVE:
            return CALLING
        if (
            event == "import"
            and details[0].startswith(PACKAGE + ".")
            and not allows(topic, details[0])
        ):
            return taken(details[0])
        if event == "code.__new__" and (whose := hidden.get(inode(str(details[1])))):
            return taken(whose)
        if event in ("open", "os.link", "os.symlink", "os.rename") and isinstance(
            details[0], (str, bytes, os.PathLike)
        ):
            path = os.fsdecode(details[0])
            whose = hidden.get(
                inode(path),
                (
                    ""
                    if os.path.isabs(path) or os.path.exists(path)
                    else os.path.basename(path) in sources and path
                ),
            )
            return taken(whose) if whose else ""
        return ""

    def hear(event: str, details: tuple) -> None:
        nonlocal inside
        if inside:
            return
        inside = True
        try:
            if sentence := against(event, details):
                refuse(sentence)
                raise Refused(sentence)
        finally:
            inside = False

    return hear


def inode(path) -> tuple | None:
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino


def is_asked_by_answer(*through: str) -> bool:
    """Whether the innermost frame is of a student's answer; frames of these modules of the standard
    library and the machinery of imports do not count."""
    frame = sys._getframe(1)
    while frame:
        file, imported = frame.f_code.co_filename, is_imported(frame.f_code, frame.f_globals)
        if not (
            file == __file__
            or file.startswith("<frozen")
            or imported
            and frame.f_globals.get("__name__") in through
        ):
            return not imported
        frame = frame.f_back
    return False


def is_imported(code, names: dict) -> bool:
    """True for code of a module that this process imported, wherever it lies: an answer came by
    value."""
    module = sys.modules.get(names.get("__name__"))
    return code.co_filename == getattr(module, "__file__", None) or code.co_filename.startswith(
        OURS
    )
