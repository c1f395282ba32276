"""A process of its own for answers: it plays the probe's scenes and writes down what each showed.

    time      CPU_S of computing an answer, WALL_S of anything: then the process is ended, and the
              line that it was at is told
    memory    MEMORY_BYTES more than it begins with, on Linux
    rows      one line of JSON a scene, so that a process that dies has told what came before

No right answer is in the process of a student's: fence.py says what keeps it out, and what does
not.
"""

import faulthandler
import functools
import io
import json
import linecache
import math
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import cloudpickle
import numpy as np
import torch

from ..core import Impossible
from ..runtime.failure import frames
from ..runtime.process import server, temporary
from ..runtime.process.pulse import Pulse
from .fence import OURS, Refused, loaded

CPU_S, WALL_S = 20, 60
LATE_S = 10  # after which an answer that has silenced the alarm is ended
MEMORY_BYTES = 4 * 1024**3
LOOK_S = 0.02
MOST_BYTES = 4 * 1024**2  # of a student's rows
MOST_TEXT = 400  # letters of an error's message
ANSWER = "answer"
BEGUN, ENDED, REFUSED = (
    "(begun)",
    "(ended)",
    "(refused)",
)  # of a row, and no class's name: still played, died in it, reached over the fence


class Row(NamedTuple):
    """What an answer showed in a scene: a value, or what it `raised` and the sentence on it."""

    scene: str
    value: object = None
    near: float = 0.0
    raised: str = ""
    told: str = ""


# -- the side that asks -------------------------------------------------------------------------


class Box:
    """The process, as a context: `rows(name)` waits for what an answer showed.

    answer    a student's, by value; the library's own is fenced off
    texts     {name: text} of known answers instead
    until     whether the rows that an answer has shown are enough; all scenes are played for None
    """

    def __init__(
        self,
        topic: type,
        seed: int,
        *,
        answer=None,
        texts: Mapping[str, str] | None = None,
        until: Callable[[list[Row]], bool] | None = None,
    ):
        self._most = MOST_BYTES if texts is None else math.inf
        self._told: dict[str, list[Row]] = {}
        self._whole: set[str] = set()
        self._room = Path(tempfile.mkdtemp(prefix="check-", dir=temporary.own()))
        self._read = 0
        self._process = None
        self._unwanted = os.pipe()
        try:
            carried = travelling(answer) if texts is None else None
            task = (travelling(topic), seed, carried, texts, until, str(self._room), CPU_S, WALL_S)
            (self._room / "program").write_bytes(pickle.dumps((task,)))
            self._process = next(
                server.start(
                    1, str(self._room / "program"), self._unwanted[0], f"{__package__}.box"
                )
            )
        except BaseException:
            self.__exit__()
            raise
        self._pulse = Pulse(self._process.pid)

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *_) -> None:
        if self._process:
            self._pulse.kill()
            self._process.join(5)
            self._process.close()
        for end in self._unwanted:
            os.close(end)
        shutil.rmtree(self._room, ignore_errors=True)

    def rows(self, name: str) -> list[Row]:
        """All rows of an answer, once it has shown them or can show no more."""
        began = time.monotonic()
        while name not in self._whole:
            ended = bool(wait([self._process.sentinel], LOOK_S))
            try:
                self._hear()
                why = self._late(time.monotonic() - began) or (self._dead() if ended else "")
            except (ValueError, TypeError):
                why = "Your answer writes where the check keeps what it saw: compute, and return."
            if name in self._whole:
                break
            if why:
                self._pulse.kill()
                rows = self._told.setdefault(name, [])
                scene = rows.pop().scene if rows and rows[-1].raised == BEGUN else "its definition"
                rows.append(Row(scene, raised=ENDED, told=why))
                self._whole.add(name)
        return self._told[name]

    def _hear(self) -> None:
        """Take in the lines that have been written since; ValueError where an answer wrote among
        them."""
        with suppress(FileNotFoundError), open(self._room / "rows", encoding="utf-8") as file:
            file.seek(self._read)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._read += len(line.encode())
                if self._read > self._most:
                    raise ValueError("too many rows")
                name, *fields = json.loads(line)
                rows = self._told.setdefault(name, [])
                if not fields:
                    if not rows or rows[-1].raised == BEGUN:
                        raise ValueError("an end too early")
                    self._whole.add(name)
                    continue
                scene, value, near, raised, told = fields
                if rows and rows[-1].raised == BEGUN:
                    rows.pop()
                rows.append(Row(scene, value, near, raised, with_source(told)))

    def _late(self, seconds: float) -> str:
        """That the answer takes too long, and at which line it is."""
        stacks = self._room / "late"
        if seconds < WALL_S + LATE_S and not (stacks.exists() and frames.is_whole(stacks)):
            return ""
        limit = WALL_S if seconds > WALL_S else CPU_S
        return with_source(f"Your answer did not end within {limit} s{of_answer(stacks)}.")

    def _dead(self) -> str:
        """That the process has ended before the answer had shown all."""
        self._process.join()
        code = self._process.exitcode
        place = of_answer(self._room / "fatal")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return with_source(
            f"Your answer ended the process that it ran in, {how}{place}. Let it return."
        )


class Carrier(cloudpickle.Pickler):
    """Takes along too what has no value of its own: a student's cached functions, to be cached
    anew; modules that cannot be imported by their names."""

    def reducer_override(self, thing):
        if isinstance(thing, functools._lru_cache_wrapper) and is_own(thing):
            rule = thing.cache_parameters()
            return type(thing), (
                thing.__wrapped__,
                rule["maxsize"],
                rule["typed"],
                functools._CacheInfo,
            )
        if (
            isinstance(thing, ModuleType) and thing.__name__ not in sys.modules
        ):  # made in C within another, which has it
            home, _, name = thing.__name__.rpartition(".")
            if getattr(sys.modules.get(home), name, None) is thing:
                return getattr, (sys.modules[home], name)
        return super().reducer_override(thing)


def is_own(thing) -> bool:
    """Whether a thing is neither of this library nor of an installed one, so it must travel by
    value."""
    home = getattr(thing, "__module__", None) or type(thing).__module__
    return home == "__main__" or is_answer(
        getattr(sys.modules.get(home), "__file__", None) or "<frozen"
    )


def travelling(thing) -> bytes:
    """A thing by value, with what it names; of this library and installed ones, by name."""
    module = sys.modules.get(getattr(thing, "__module__", None) or type(thing).__module__)
    own = module is not None and module.__name__ != "__main__" and is_own(thing)
    try:
        if own:
            cloudpickle.register_pickle_by_value(module)
        with io.BytesIO() as file:
            Carrier(file).dump(thing)
            return file.getvalue()
    except Exception as error:
        raise Impossible(
            f"The answer cannot travel to a process of its own ({type(error).__name__}: {error}): "
            "let it make open files, locks and widgets itself."
        ) from error
    finally:
        if own:
            cloudpickle.unregister_pickle_by_value(module)


def of_answer(dump: Path) -> str:
    """Where a stack that faulthandler wrote is in the answer, in words; "" where it wrote none."""
    if not dump.exists():
        return ""
    place = frames.of_dump(dump.read_text(encoding="utf-8", errors="replace"))
    return f": it was at {line_of(place)}" if place and is_answer(place.file) else ""


def is_answer(file: str) -> bool:
    return not frames.is_foreign(file) and not file.startswith(OURS)


def line_of(place: frames.Place) -> str:
    """In a process that has not the cells' text: the source is filled in by `with_source`."""
    return f"your line {place.line}\0{place.file}\0{place.line}\0"


def with_source(told: str) -> str:
    """The sentence with the text of the lines that it names, where this process knows it."""

    def source(found: re.Match) -> str:
        text = linecache.getline(found[1], int(found[2])).strip()
        return f", `{text}`" if text else ""

    return re.sub("\0(.*?)\0(.*?)\0", source, told)


# -- the process itself ---------------------------------------------------------------------------


def main(index: int, task: tuple) -> None:
    """All that the process does; leaves by os._exit."""
    pickled_topic, seed, carried, texts, until, room, cpu_s, wall_s = task
    let_go()
    out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(out, 1), os.dup2(out, 2)
    torch.set_num_threads(1)
    faulthandler.enable(open(f"{room}/fatal", "w", encoding="utf-8"))
    late = open(f"{room}/late", "w", encoding="utf-8")
    faulthandler.register(signal.SIGPROF, late)
    limit_memory()
    warnings.simplefilter("ignore")  # a warning reads the source that it comes from
    notes = Notes(open(f"{room}/rows", "w", encoding="utf-8"))
    topic = pickle.loads(pickled_topic)
    for name in texts if texts is not None else (ANSWER,):
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        faulthandler.dump_traceback_later(wall_s, file=late)
        notes.name, notes.rows = name, []
        play(
            topic,
            seed,
            until,
            lambda name=name: (
                made(texts[name]) if texts is not None else loaded(carried, topic, notes.refuse)
            ),
            notes,
        )
    os._exit(0)


def play(topic: type, seed: int, until, load, notes: "Notes") -> None:
    """Load an answer and note what it shows in each scene; after one that it cannot end, no more,
    nor when it is enough."""
    before, answers = Left(), []
    goes_on = notes.row("its definition", lambda: answers.append(load()), 0.0)
    before.watch(topic)
    for scene in topic.probe(*answers, random.Random(seed)) if goes_on else ():
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        goes_on = notes.row(scene.name, functools.partial(before.then, scene.run), scene.near)
        if not goes_on or until is not None and until(notes.rows):
            break
    notes.end()


def made(text: str):
    """The answer that a text defines."""
    names = {"__name__": "known"}
    exec(compile(text, "<known answer>", "exec"), names)
    return names[ANSWER]


class Notes:
    """The file of rows: of each scene that it begins, then what it showed."""

    def __init__(self, file):
        self.file, self.name, self.scene, self.rows = file, ANSWER, "its definition", []

    def row(self, scene: str, run, near: float) -> bool:
        """Note what `run()` shows, or raises; whether it showed something."""
        self.scene = scene
        self.write(scene, None, near, BEGUN, "")
        try:
            self.rows.append(Row(scene, plain(run()), near))
            self.write(*self.rows[-1])
            return True
        except BaseException as error:  # noqa: B902  (an answer may raise anything)
            self.write(scene, None, near, type(error).__name__ or "an error", raised(error))
            return False

    def refuse(self, why: str) -> None:
        """Note that the answer reached for what it may not have, and end the process: it cannot go
        on."""
        self.write(self.scene, None, 0.0, REFUSED, why)
        self.end()
        os._exit(0)

    def write(self, *fields) -> None:
        self.file.write(json.dumps([self.name, *fields]) + "\n")
        self.file.flush()

    def end(self) -> None:
        self.write()


class Left:
    """What an answer must leave as it was: whether gradients are on, torch's functions, those that
    the exercise allows."""

    PLACES = (
        torch,
        torch.Tensor,
        torch.nn.functional,
        torch.nn.Module,
        torch.autograd,
        torch.optim.SGD,
        torch.optim.Optimizer,
        torch.nn.utils,
    )

    def __init__(self):
        torch.optim.SGD([torch.zeros(1)])  # the first one changes its class
        self.functions = [(place, dict(vars(place))) for place in self.PLACES]

    def watch(self, topic: type) -> None:
        """The modules that the exercise allows too, and their classes, as they are behind the
        fence."""
        modules = [sys.modules[name] for name in topic.allows if name in sys.modules]
        classes = [
            thing
            for module in modules
            for thing in vars(module).values()
            if isinstance(thing, type) and thing.__module__ == module.__name__
        ]
        self.functions += [(place, dict(vars(place))) for place in (*modules, *classes)]

    def then(self, run):
        """run(); Refused where something else is left behind, which is undone."""
        try:
            shown = run()
            gradients_on, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
        finally:
            changed = self._put_back()
            torch.set_grad_enabled(True)
            torch.set_default_dtype(torch.float32)
        if not gradients_on:
            raise Refused(
                "Gradients are still switched off after your answer: use `with torch.no_grad():`,"
                " which ends."
            )
        if dtype != torch.float32:
            raise Refused("Your answer changed torch's default dtype: leave it as it was.")
        if changed:
            raise Refused(
                f"After your answer {changed[0]} is another function: leave it as it was."
            )
        return shown

    def _put_back(self) -> list[str]:
        """Names of the functions that were another one, all of which are put back."""
        changed = []
        for place, before in self.functions:
            now = dict(vars(place))
            for name in () if now == before else {**before, **now}:
                function, inherited = (
                    before.get(name),
                    any(name in vars(base) for base in getattr(place, "__mro__", ())[1:]),
                )
                if now.get(name) is function or not (inherited or callable(function)):
                    continue
                if name in before:
                    setattr(place, name, function)
                else:
                    delattr(place, name)
                if getattr(place, name) is not now.get(name):
                    changed.append(f"{place.__name__}.{name}")
        return changed


def raised(error: BaseException) -> str:
    """The sentence on an error, with the answer's line."""
    if isinstance(error, (Refused, Impossible)):
        return str(error)
    places = [
        frames.Place(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [place for place in places if is_answer(place.file)]
    at = f", at {line_of(own[-1])}" if own else ""
    try:
        what = f"{type(error).__name__}: {str(error)[:MOST_TEXT]}".rstrip(": .")
    except Exception:  # its text raises too
        what = type(error).__name__
    if isinstance(error, SystemExit):
        return f"Your answer called sys.exit{at}: let it return."
    if isinstance(error, MemoryError) or "allocate memory" in what:
        return f"Your answer needs more than {MEMORY_BYTES / 1e9:.1f} GB{at}."
    if not own and isinstance(error, TypeError) and re.search(r"\(\) (takes|missing|got) ", what):
        return (
            f"Your answer could not be called as the exercise does ({what.partition(': ')[2]}):"
            " take what it names."
        )
    if not own:
        return f"What your answer gave cannot be used ({what})."
    return f"Your answer raised {what}{at}."


def plain(value):
    """A value as JSON has it: of numpy and torch too, of tuples, ranges and generators."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Real):
        return float(value)
    try:
        return [plain(each) for each in value]
    except TypeError:
        return f"a {type(value).__name__}"


def limit_memory() -> None:
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        room = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024**2,) * 2)


def let_go() -> None:
    """Close what the server's processes share: an answer that writes there would end the server."""
    sentinel = parent_process().sentinel
    os.closerange(3, sentinel)
    os.closerange(sentinel + 1, 1024)
