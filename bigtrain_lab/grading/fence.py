"""What a student's answer cannot reach in its process: answers that exist already, and other processes.

The library's modules are gone but for those that the exercise allows. Functions and classes of torch
that are the answer are replaced. Python tells an audit hook (PEP 578) when code imports, opens a file,
looks at its callers' frames or at the collector's objects, or starts a process; no code can remove it.
An answer that reaches for any of it ends there, with a sentence.
"""

import pickle
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType

OURS = str(Path(__file__).parents[1])
PACKAGE = __package__.split(".")[0]
STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
LOOKS = ("sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents",
         "sys.settrace", "sys.setprofile")
FRAMES = ("tb_frame", "gi_frame", "cr_frame")
SOURCES = (".py", ".ipynb")
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn")
ANSWERS = ("techniques", "schedules", "collectives", "recomputes", "experiments")  # packages that have them
METHODS = (FunctionType, classmethod, staticmethod, property)


class Refused(Exception):
    """A sentence on what an answer may not do."""


class Fence:
    """Fences off what `topic` neither allows nor knows as its own; `refuse(sentence)` does not return."""

    def __init__(self, topic: type, refuse: Callable[[str], None]):
        self.topic, self.refuse, self.loading, self.inside = topic, refuse, False, False
        self.emptied: set[type] = set()
        for name in topic.forbids:
            above, _, last = name.rpartition(".")
            self._take(resolve_name(above), last, name)
        self._forget()
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._hear)

    def load(self, carried: bytes):
        """The answer, out of its bytes."""
        self.loading = True
        try:
            answer = pickle.loads(carried)
        finally:
            self.loading = False
        if isinstance(answer, type) and answer in self.emptied:
            self.refuse(taken(f"{answer.__module__}.{answer.__qualname__}"))
        return answer

    # -- what there is not ---------------------------------------------------------------------------

    def _take(self, above, last: str, name: str) -> None:
        """Empty a class, which many hold; put an empty one in the place of a function; forbid a method."""
        thing = getattr(above, last)
        if isinstance(thing, type):
            return self._empty(thing, name)
        if isinstance(above, type):
            return setattr(above, last, lambda *_, **__: self.refuse(taken(name)))
        stand_in = type("Taken", (), {})
        self._empty(stand_in, name)
        for module in list(sys.modules.values()):
            for known_as, other in list(getattr(module, "__dict__", {}).items()):
                if other is thing:
                    setattr(module, known_as, stand_in)

    def _empty(self, cls: type, name: str) -> None:
        """Let nobody make, use or inherit from this class."""
        def refuse(*_, **__):
            self.refuse(taken(name))

        self.emptied.add(cls)
        methods = [each for each, method in vars(cls).items() if isinstance(method, METHODS)]
        for each in {*methods, "__init__"}:
            type.__setattr__(cls, each, refuse)
        type.__setattr__(cls, "__init_subclass__", classmethod(refuse))

    def _forget(self) -> None:
        """Drop this library's modules that the exercise does not allow, and empty the answers in them."""
        for name in [n for n in sys.modules if n.startswith(PACKAGE + ".") and not self._allows(n)]:
            above, _, last = name.rpartition(".")
            module = sys.modules.pop(name)
            if vars(sys.modules.get(above, module)).get(last) is module:
                delattr(sys.modules[above], last)
            if name.split(".")[1] in ANSWERS:
                for thing in vars(module).values():
                    if isinstance(thing, type) and thing.__module__ == name:
                        self._empty(thing, f"{name}.{thing.__qualname__}")

    def _allows(self, name: str) -> bool:
        return name == PACKAGE or any((name + ".").startswith(each + ".") or each.startswith(name + ".")
                                      for each in self.topic.allows)

    def find_spec(self, name: str, path=None, target=None):
        """Asked before anybody else is, for a module that is not there yet."""
        if name.startswith(PACKAGE + ".") and not self._allows(name):
            self.inside = True  # the look at frames is our own
            if self.loading or is_asked_by_answer():
                self.refuse(taken(name))
            self.inside = False

    # -- what is told to the hook ----------------------------------------------------------------------

    def _hear(self, event: str, details: tuple) -> None:
        if self.inside:
            return
        self.inside = True
        try:
            if sentence := self._against(event, details):
                self.refuse(sentence)
        finally:
            self.inside = False

    def _against(self, event: str, details: tuple) -> str:
        """The sentence against an event; "" where there is none."""
        if event in LOOKS or event == "object.__getattr__" and details[1] in FRAMES:
            if is_asked_by_answer("inspect"):
                return "Your answer looks at the code that calls it: compute from what it is given."
        elif event in STARTS:
            if is_asked_by_answer():
                return "Your answer starts another process: compute in this one."
        elif event == "open" and isinstance(details[0], str):
            if details[0].startswith((OURS, *INSTALLED)) and details[0].endswith(SOURCES) and is_asked_by_answer():
                return "Your answer reads the source of a library: write it yourself."
        return ""


def taken(name: str) -> str:
    return f"Your answer takes {name}, which is not at hand here: write it yourself."


def is_asked_by_answer(*through: str) -> bool:
    """Whether the innermost frame is of a student's answer; frames of these modules of the standard
    library, of all of them where none is named, and the machinery of imports do not count."""
    frame = sys._getframe(1)
    while frame:
        file, name = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        standard = file.startswith(STDLIB) and not file.startswith(INSTALLED)
        passes = (file == __file__ or file.startswith("<frozen") or standard and (not through or name in through)
                  or name == PACKAGE and frame.f_code.co_name == "__getattr__")
        if not passes:
            return not standard and not file.startswith((OURS, *INSTALLED))
        frame = frame.f_back
    return False
