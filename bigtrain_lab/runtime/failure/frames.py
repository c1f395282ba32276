"""Where in a person's code: the innermost frame that is neither this runtime's nor an installed
library's."""

import linecache
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import NamedTuple

RUNTIME = f"{Path(__file__).parent.parent}{os.sep}"
PACKAGE = f"{Path(RUNTIME).parent}{os.sep}"
LIBRARIES = tuple(
    {
        *map(
            sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")
        ),  # and wherever else something is installed
        *(folder for folder in filter(None, sys.path) if any(Path(folder).glob("*.dist-info"))),
    }
)


class Place(NamedTuple):
    """A line of a file, in a function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.line).strip()
        cell = re.search(r"ipykernel_\d+[/\\]|<ipython-input", self.file)
        where = f"line {self.line} of a notebook cell" if cell else f"{self.file}:{self.line}"
        return f"{where}, in {self.function}" + (f": {source}" if source else "")


def is_foreign(file: str) -> bool:
    """Whether a file is a library's, the runtime's or the interpreter's own. A lab's is none,
    wherever this package is installed."""
    return file.startswith(
        (RUNTIME, "<frozen") if file.startswith(PACKAGE) else ("<frozen", *LIBRARIES)
    )


def innermost(places: list[Place]) -> Place | None:
    """The innermost of these frames, outermost first, in a person's code; the innermost of all
    where there is none."""
    own = [place for place in places if not is_foreign(place.file)]
    return own[-1] if own else places[-1] if places else None


def of_error(error: BaseException) -> Place | None:
    """Where an exception came from."""
    return innermost(
        [
            Place(f.filename, f.lineno or 0, f.name)
            for f in traceback.extract_tb(error.__traceback__)
        ]
    )


def dumped(file: Path) -> str:
    """What faulthandler has written there."""
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def is_whole(dump: str) -> bool:
    """Whether that is all of a dump: the outermost frame of each stack is a whole line, the main
    thread's last."""
    return bool(re.search(r'^  File ".*", line \d+ in (_bootstrap|<module>)\n\Z', dump, flags=re.M))


def of_dump(text: str, thread: int | None = None) -> Place | None:
    """Where a process is by what faulthandler wrote last: the thread that crashed, else this
    one, else the main one, which it lists last."""
    parts = re.split(r"^((?:Current thread|Thread) .*)$", text, flags=re.M)
    stacks = list(zip(parts[1::2], parts[2::2]))
    if "Fatal Python error" in text:
        stacks = [stack for stack in stacks if stack[0].startswith("Current")]
    elif thread is not None:
        stacks = [stack for stack in stacks if re.search(rf"\b0x0*{thread:x}\b", stack[0])]
    frames = re.findall(
        r'^  File "(.*)", line (\d+) in (.*)$', stacks[-1][1] if stacks else "", flags=re.M
    )
    return innermost(
        [Place(file, int(line), function) for file, line, function in reversed(frames)]
    )
