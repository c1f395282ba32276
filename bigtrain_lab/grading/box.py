"""Play an answer's text in processes that hold no truth (inside.py), and count out here.

    time      CPU_S of computing, WALL_S between two messages: then the process is ended, and the
              line that it was at is told
    memory    MEMORY_BYTES more than a process begins with, on Linux
    messages  each rank's go through Ranks in this process: who waits for whom, how many bytes

An answer that ends its process, or sends what cannot be read, is told so in a sentence.
"""

import atexit
import os
import pkgutil
import random
import re
import signal
import socket
import sys
import sysconfig
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from ..core.later import later
from . import inside
from .inside import MAIN, described, plain, receive, send
from .text import Piece
from .trainings import Refused

with later():
    import torch

    from ..runtime.process import server
    from . import ranks as threads

CPU_S, WALL_S = 10, 60
LATE_S = 5  # after which an answer that has silenced the alarm is ended
MEMORY_BYTES = 4 * 1024**3
MOST_PRINTED = 2000  # letters of a scene
LIMITS = {"CPU": CPU_S, "AS": MEMORY_BYTES, "FSIZE": 0, "NOFILE": 256, "CORE": 0}
TOO_LONG = "TooLong"
ENDED = "(ended)"  # of a row, and no class's name: the answer's process died in it
PACKAGE = Path(__file__).parents[1]
WITHOUT_ANSWERS = (  # what any answer may import of this library
    "core",
    "order.collective",
    "order.plan",
    "order.schedule",
    "order.simulate",
    "runtime",
    "grading.inside",
    "grading.trainings",
)


class Row(NamedTuple):
    """What an answer showed in a scene: a value, or what it `raised` and the sentence on it."""

    scene: str
    value: object = None
    near: float = 0.0
    raised: str = ""
    told: str = ""
    printed: str = ""
    replay: Callable | None = None  # -> a picture of it, where the exercise has one


class Raised(Exception):
    """An answer raised: what inside.described tells."""


class Ended(Exception):
    """An answer's process ended before the answer had shown all, or was ended."""


# -- the processes --------------------------------------------------------------------------------


class Box:
    """A process that has loaded torch, from which those of answers are forked. It starts at once
    and loads meanwhile; it ends with this process, or by `close`."""

    def __init__(self):
        self._room = tempfile.mkdtemp(prefix="answers-")
        self._control, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(server.running().copies, [inside.__file__.encode()], [theirs.fileno()])
        modules = {name: text for each in WITHOUT_ANSWERS for name, text in texts(each).items()}
        send(self._control, [self._room, modules, LIMITS | {"CPU": CPU_S}])
        self._servers, self._lock = {}, RLock()
        atexit.register(self.close)

    def close(self) -> None:
        """End all its processes, which remove their folder."""
        atexit.unregister(self.close)
        for each in self._servers.values():
            each.close()
        with self._control:
            self._control.shutdown(socket.SHUT_WR)
            self._control.recv(1)  # nothing: they have all ended

    def rows(self, exercise, pieces: list[Piece], seed: int, names=None) -> Iterator[Row]:
        """What an answer shows, scene by scene, or in those of these names; each in new
        processes."""
        for name, *inputs in exercise.drawn_scenes(seed):
            if names is not None and name not in names:
                continue
            yield (row := self.row(exercise, name, deepcopy(inputs), pieces, seed))
            if row.scene != name:
                return

    def row(self, exercise, name: str, inputs: list, pieces: list[Piece], seed: int) -> Row:
        """What an answer shows in a scene, of `inputs` or of what is common and each rank's own."""
        common, own, *again = inputs if len(inputs) > 1 else (inputs[0], None)
        task, why, children = {"pieces": pieces, "seed": seed}, None, []
        with self._lock, tempfile.TemporaryDirectory(prefix="room-", dir=self._room) as room:
            server = self._server(exercise)
            try:
                for each in (common, *again):
                    task |= {"common": each, "room": room if exercise.writes else ""}
                    came, ranks, children = life(server, task, own)
            except (Refused, Raised, Ended) as error:
                why, children = error, error.children
        printed = "".join(each.printed for each in children)[:MOST_PRINTED]
        if any(each.failed and not each.defined for each in children):
            name = "its definition"
        if why is None:
            return shown(exercise, name, inputs[:2], came, ranks)._replace(printed=printed)
        return Row(name, None, exercise.near, *sentence(why, pieces, children), printed)

    def _server(self, exercise):
        """The socket of an exercise's server."""
        if exercise not in self._servers:
            server, theirs = socket.socketpair()
            socket.send_fds(self._control, [b"e"], [theirs.fileno()])
            theirs.close()
            send(server, travelling(exercise))
            if why := receive(server)[0]:
                raise RuntimeError(f"{exercise.name}: its bench cannot be loaded: {why}")
            self._servers[exercise] = server
        return self._servers[exercise]


def life(server, task: dict, own: list[dict] | None) -> tuple:
    """(what came out, the ranks, their processes); None came where the bench killed them. What an
    answer raises has its `children`."""
    wires, theirs = zip(*(socket.socketpair() for _ in own or [{}]))
    socket.send_fds(server, [b"r"], [each.fileno() for each in theirs])
    for each in theirs:
        each.close()
    children, ranks = [Child(wire, pid) for wire, pid in zip(wires, receive(server)[0])], None
    try:
        for rank, each in enumerate(children):
            each.say(
                task | {"rank": rank, "size": own and len(own), "own": own[rank] if own else {}}
            )
        if own is None:
            came = children[0].serve(None)
        else:
            ranks = threads.Ranks(len(own), random.Random(str(task["common"])).random())
            came = ranks.run(lambda group: children[group.rank].serve(group))
    except threads.Killed:
        came = None
    except (Refused, Raised, Ended) as error:
        error.children = children
        raise
    finally:
        for each in children:
            each.end()
        for each, (status, peak) in zip(children, receive(server)[0]):
            each.code, each.peak = os.waitstatus_to_exitcode(status), peak
    if ranks:
        ranks.peaks = [max(0, 1024 * each.peak - each.before) for each in children]
        ranks.kept = [max(0, each.kept - each.bare) for each in children]
    return came, ranks, children


@cache
def box() -> Box:
    """The box of this process."""
    return Box()


class Reach:
    """Plays as an exercise does: whether an answer reaches what it must not."""

    name, folder, bench = "reach", PACKAGE / "grading", f"{__package__}.trainings"
    allows, forbids, writes, near, replay = (), (), False, 0.0, None
    text = """
import os, socket

def reaches(what, *given):
    try:
        what(*given)
    except OSError:
        return False
    return True

def answer():
    return {{
        "files": reaches(os.listdir, {folder!r}),
        "processes": reaches(os.kill, os.getppid(), 0),
        "the network": reaches(socket.socket),
    }}
"""

    @staticmethod
    def shown(inputs: dict, came: dict) -> dict:
        return came


def fence() -> dict[str, bool]:
    """{"files", "processes", "the network"}: whether answers are kept from them on this machine."""
    text = Reach.text.format(folder=str(PACKAGE))
    row = box().row(Reach, Reach.name, [{}], [Piece(1, text)], seed=0)
    return {what: not reached for what, reached in row.value.items()}


@cache
def travelling(exercise) -> dict:
    """What of an exercise goes to an answer's process: no truth, no right answer."""
    modules = {}
    benches = [exercise.folder / "bench.py", *PACKAGE.glob("grading/topics/*/bench.py")]
    for path in filter(Path.exists, benches):
        package = f"{PACKAGE.name}.grading.topics.{path.parent.name}"
        modules |= {
            package: [True, ""],
            f"{package}.bench": [False, path.read_text(encoding="utf-8")],
        }
    modules[f"{PACKAGE.name}.grading.topics"] = [True, ""]
    for name in exercise.allows:
        modules |= texts(name.removeprefix(f"{PACKAGE.name}."))
    foreign = [name for name in exercise.forbids if not name.startswith(PACKAGE.name)]
    homes_of = [(pkgutil.resolve_name(name), name.rpartition(".")[0]) for name in foreign]
    hidden = [sys.modules[getattr(each, "__module__", at)].__file__ for each, at in homes_of]
    return {
        "bench": exercise.bench,
        "modules": modules,
        "allows": list(exercise.allows),
        "forbids": list(exercise.forbids),
        "folders": readable(server.homes() | {sysconfig.get_path("stdlib")}, hidden),
    }


def texts(name: str) -> dict[str, list]:
    """{module: [whether it is a package, text]} of a module of this library, or of a package and
    all in it; the packages above it are empty."""
    path = PACKAGE.joinpath(*name.split("."))
    found = {PACKAGE.name: [True, (PACKAGE / "__init__.py").read_text(encoding="utf-8")]}
    found |= {
        ".".join([PACKAGE.name, *name.split(".")[:number]]): [True, ""]
        for number in range(1, name.count(".") + 1)
    }
    for file in [*path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")]:
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        package = parts[-1] == "__init__"
        dotted = ".".join([PACKAGE.name, *parts[: len(parts) - package]])
        found[dotted] = [package, file.read_text(encoding="utf-8")]
    return found


def readable(folders, hidden: list[str]) -> list[str]:
    """What may be read of folders: not this library, nor the hidden files."""
    found = ["/dev/null", "/dev/urandom", "/usr/share/zoneinfo"]
    for folder in map(Path, folders):
        inside_it = [each for each in hidden if Path(each).is_relative_to(folder)]
        if inside_it or folder in (*map(Path, server.homes()), Path(sysconfig.get_path("stdlib"))):
            found += readable(
                (
                    each
                    for each in folder.iterdir()
                    if str(each) not in hidden
                    and each.stem not in {"site-packages", "dist-packages"}
                    and not each.name.startswith((PACKAGE.name, "__editable"))
                ),
                inside_it,
            )
        else:
            found.append(str(folder))
    return [each for each in found if os.path.exists(each)]


# -- a rank's process, from outside ---------------------------------------------------------------


class Child:
    """The other end of a child's wire: carries out what the child asks its groups for."""

    def __init__(self, wire, pid: int):
        self.wire, self.pid, self.code = wire, pid, 0
        self.before, self.peak = 0, 0  # bytes: resident before the answer, and at most
        self.bare, self.kept = written(pid), 0  # and written: first, and at the bench's last mark
        self.printed, self.defined, self.failed = "", False, False
        self.ended, self.late = False, False
        self._groups, self._lanes, self._launched, self._sent = {}, {}, {}, {}
        wire.settimeout(WALL_S)

    def say(self, head, *tensors) -> None:
        try:
            send(self.wire, head, *tensors)
        except OSError:
            self.ended = True
            raise Ended from None

    def hear(self) -> tuple:
        try:
            return receive(self.wire)
        except TimeoutError:
            if self.late:
                raise Ended from None
        except (EOFError, OSError, ValueError, TypeError, AttributeError):
            self.ended = True
            raise Ended from None
        self.late = True
        self.wire.settimeout(LATE_S)
        os.kill(self.pid, signal.SIGALRM)
        return self.hear()

    def end(self) -> None:
        if not self.ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.wire.close()

    def serve(self, group, at: int = MAIN):
        """What came out in the end. `at`: the lane, whose function has ended with "done"."""
        self._groups.setdefault(at, group)
        try:
            return self.answered(at)
        except (Refused, Raised, Ended) as error:
            self.failed = not isinstance(error, Refused)
            raise
        except Exception as error:
            raise Refused(
                f"What your answer sent cannot be read ({type(error).__name__}: {error})."
            ) from error

    def answered(self, at: int):
        while True:
            (what, key, lane, given, changed), tensors = self.hear()
            for number in changed:
                if (sent := self._sent.pop(number, lambda: None)()) is not None:
                    sent.view(-1).view(torch.uint8).bitwise_not_()  # another one from now on
            if what == "print":
                self.printed = (self.printed + given["text"])[:MOST_PRINTED]
            elif what == "defined":
                self.defined, self.before = True, given["before"]
            elif what == "raised":
                raise Raised(given["error"])
            elif what == "killed":
                self.ended = True
                raise threads.Killed
            elif what == "end":
                self.ended = True
                return given["came"]
            elif what == "done":
                return None
            else:
                value, back = self.carry_out(what, self._groups[key], key, tensors, **given)
                received = [n for n, sent in self._sent.items() if sent() is None]
                self.say([lane, value, received], *back)

    def carry_out(self, what, group, key, tensors, **given) -> tuple:
        """(a value, tensors) of a call of a group."""
        first = tensors[0] if tensors else None
        match what:
            case "isend":
                self._sent[given["number"]] = weakref.ref(first)
                dst, name, site, tag = given["way"]
                group.isend(first, dst, name, site, tag)
            case "recv":
                src, name, site, tag = given["way"]
                return None, [group.recv(src, name, site, tag)]
            case "all_reduce" | "broadcast":
                return None, [getattr(group, what)(first, **given)]
            case "reduce_scatter":
                whole = tensors if given["listed"] else first
                return None, [group.reduce_scatter(whole, given["op"])]
            case "all_gather":
                out = [torch.empty(s, dtype=getattr(torch, d)) for d, s in given["shapes"]]
                if given["listed"] or not out:
                    whole = group.all_gather(first, out or None)
                    return None, whole if given["listed"] else [whole]
                return None, [group.all_gather(first, out[0])]
            case "lane":
                lane = group.lane(given["name"])
                number = next((n for n, each in self._lanes.items() if each is lane), 0)
                self._lanes[number := number or len(self._groups)] = lane
                self._groups[number] = lane.group
                return number, []
            case "among":
                axis = group.among(given["name"], tuple(given["members"]))
                self._groups[number := len(self._groups)] = axis
                return [number, axis.rank, axis.size], []
            case "launch":
                number = given["number"]
                self._launched[number] = self._lanes[key].launch(
                    lambda group: self.run(group, key, number)
                )
            case "wait":
                if launched := self._launched.pop(given["number"], None):  # else it has waited
                    launched.wait()
            case "pause" | "finish":
                getattr(group, what)()
            case "mark":
                group.mark(given["told"])
                self.kept = written(self.pid)
        return None, []

    def run(self, group, key: int, number: int) -> None:
        """Let the child run what it launched on a lane."""
        self.say([key, number, []])
        self.serve(group, key)


def written(pid: int) -> int:
    """Bytes of a process's memory that are no file's; 0 where Linux does not say."""
    with suppress(OSError, KeyError):
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        sizes = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        own = (sizes[name].split() for name in ("RssAnon", "RssShmem", "VmSwap"))
        return 1024 * sum(int(size) for size, _ in own)
    return 0


# -- in words -------------------------------------------------------------------------------------


def shown(exercise, name: str, inputs: list, came, ranks) -> Row:
    """A scene's row, out of what came; whatever an answer sent."""
    try:
        with torch.random.fork_rng([]):
            value = exercise.shown(*inputs, came, *filter(None, [ranks]))
        replay = exercise.replay and partial(exercise.replay, *inputs, came)
        return Row(name, plain(value), exercise.near, replay=replay)
    except Exception as error:
        return Row(name, None, exercise.near, *said_of(*described(error), [], 0))


def sentence(why: Exception, pieces: list[Piece], children: list[Child]) -> tuple[str, str]:
    """(what an answer raised, the sentence on it)."""
    if isinstance(why, Refused):
        return "Refused", str(why)
    if isinstance(why, Raised):
        return said_of(*why.args[0], pieces, WALL_S if any(c.late for c in children) else CPU_S)
    late = any(each.late for each in children)
    codes = [each.code for each in children if each.code and each.ended]  # not ended from here
    if late or {-signal.SIGXCPU, -signal.SIGKILL} & {*codes}:
        return ENDED, f"Your answer did not end within {WALL_S if late else CPU_S} s."
    code = next(iter(codes), 0)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return ENDED, f"Your answer ended the process that it ran in, {how}. Let it return."


def said_of(kind, text, number, line, pieces: list[Piece], seconds: int) -> tuple[str, str]:
    """An error as inside.described tells it, with the answer's line."""
    if kind in ("Refused", "Impossible"):
        return kind, text
    at = ""
    if number is not None:
        lines = pieces[number].text.splitlines()
        source = "".join(lines[line - pieces[number].line :][:1]).strip()
        at = f" at your line {line}, `{source}`" if source else f" at your line {line}"
    comma, what = f",{at}" if at else "", f"{kind}: {text}".rstrip(": .")
    if kind == TOO_LONG:
        where = f": it was{at}" if at else ""
        return ENDED, f"Your answer did not end within {seconds} s{where}."
    if kind == "SystemExit":
        return kind, f"Your answer called sys.exit{comma}: let it return."
    if kind == "MemoryError" or "allocate memory" in text:
        return kind, f"Your answer needs more than {MEMORY_BYTES / 1e9:.1f} GB{comma}."
    if not at and kind == "TypeError" and re.search(r"\(\) (takes|missing|got) ", text):
        return kind, (
            f"Your answer could not be called as the exercise does ({text}): take what it names."
        )
    if not at:
        return kind, f"What your answer gave cannot be used ({what})."
    return kind, f"Your answer raised {what}{comma}."
