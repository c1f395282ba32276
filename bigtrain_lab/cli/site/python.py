"""Python for a page: its memory as it is once this library is imported, what a lab's settings
predict from, and the browser's own files, all zipped.

    start in a browser    unzip a memory, instead of starting Python and importing 400 modules
    pyodide/*.gz          Pyodide, Python's library, pydantic's core
    snapshot.gz           the memory: node makes it, once a build (snapshot.mjs)
    library.gz            this library's files, for what is imported later
    kept/LAB.gz           what was kept of a lab's settings (runtime/kept.py)
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Iterable
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from ...core import Impossible, refuse, write_whole
from ...experiments import Experiment
from ...experiments.known import predicted
from ...runtime import kept
from ...train.forms import last_sizes
from ...view import live
from ...view.page import asset
from .settings import settings

PACKAGE = Path(__file__).parents[2]
PAGE = PACKAGE / "view" / "page"
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
LOCK = "pyodide-lock.json"
UNUSED = {"course", "panel", "cli", "checks", "figures", "player", "languages"}
# What these predict from is no dry run alone, but numpy too, or what torch draws: kept whole.
WHOLE = {"checkpoint", "plan", "translate"}
# Of Python's own library, what no page can use: it has no threads, sockets, screens or debuggers.
UNUSABLE = re.compile(
    r"(_pyrepl|unittest|xml|xmlrpc|wsgiref|pdb|bdb|doctest|pydoc|imaplib|ftplib|smtplib|poplib|mailbox|"
    r"_pyio|pickletools|encodings/(cp|mac_|iso|euc|big5|shift|gb|koi|johab|hz|hp|ptcp))"
)
AT = "/library"  # of what is imported, in the browser


def refuse_incomplete(pyodide: Path) -> None:
    needed = *RUNTIME, LOCK, "pydantic_core*.whl"
    missing = [name for name in needed if not any(pyodide.glob(name))]
    refuse(
        (
            missing,
            f"{pyodide} has no {''.join(missing[:1])}: docs/site.md says how to fill it.",
        ),
        (
            not shutil.which("node"),
            "There is no node, which starts Python once for all pages: install it.",
        ),
    )


def made(labs: Iterable[str], build: str) -> dict[str, list[Path]]:
    """Keep what the predictions of the labs' settings need. Returns the files of each."""
    os.environ["XDG_CACHE_HOME"] = str(kept.kept_in("kept").with_name(f"site-{build}"))
    import_module(f"{PACKAGE.name}.train.dry_run")  # with torch, once for all that are forked
    found, labs = {}, [*labs]
    with get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as processes:
        # a whole prediction is made first: then none of its dry runs is opened
        for some in ([lab for lab in labs if lab in WHOLE], labs):
            found |= zip(some, processes.map(make, some, 1))
    return found


def make(lab: str) -> list[Path]:
    """The same of one lab, in a process that has asked for nothing yet."""
    cls, opened = Experiment.named(lab), set()
    sys.addaudithook(lambda event, given: event == "open" and opened.add(str(given[0])))
    tell = predicted if lab in WHOLE else predicted.__wrapped__
    for changed in settings(cls):
        last_sizes.cache_clear()  # a page has no numpy: each place has a dry run
        asked = live.defaults(cls) | changed
        with suppress(Impossible):  # the page says why
            tell(cls, tuple(asked.items()), cls.members(asked))
    return sorted(
        path for path in kept.kept_in("kept").with_suffix("").glob("*") if str(path) in opened
    )


def put(pyodide: Path, used: dict[str, list[Path]], directory: Path) -> None:
    """Write Python into a site. `used`: what each lab needs."""
    lock = json.loads((pyodide / LOCK).read_text(encoding="utf-8"))
    with TemporaryDirectory() as name:
        room = Path(name)
        (room / "pyodide").mkdir()
        for wheel in pyodide.glob("*.whl"):
            shutil.unpack_archive(wheel, room / "wheels", "zip")
        (core,) = (room / "wheels").rglob("*.so")
        told = {
            "env": {kept.MADE_BY: kept.made_by(), "XDG_CACHE_HOME": "/kept", "HOME": "/home"},
            "lock": json.dumps(lock | {"packages": {}}),
            "core": f"{AT}/{core.relative_to(room / 'wheels')}",
        }
        shutil.copy(core, room / "pyodide" / "core.so")
        for source in (*map(pyodide.joinpath, RUNTIME), *PAGE.glob("*.mjs")):
            shutil.copy(source, room / ("pyodide" if source.parent == pyodide else ""))
        trim(room / "pyodide" / "python_stdlib.zip")
        core.write_bytes(b"")  # it is loaded before Python starts
        own = files(PACKAGE, f"{AT}/{PACKAGE.name}", UNUSED)
        (room / "made.json").write_text(json.dumps(told), encoding="utf-8")
        (room / "files.json").write_text(
            json.dumps(own | files(room / "wheels", AT)), encoding="utf-8"
        )
        run = subprocess.run(["node", "snapshot.mjs"], cwd=room, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"Python could not start in node: {run.stderr[-1000:]}")
        loaded = {*json.loads((room / "loaded.json").read_text(encoding="utf-8"))}
        trim(room / "pyodide" / "python_stdlib.zip", loaded)
        for path in (*(room / "pyodide").iterdir(), room / "snapshot"):
            zipped(directory / path.relative_to(room), path.read_bytes())
    later = {path: body for path, body in own.items() if module(path, AT) not in loaded}
    zipped(directory / "library", json.dumps(later).encode())
    for lab, paths in used.items():
        body = {f"/kept/{PACKAGE.name}/kept/{path.name}": text(path) for path in paths}
        zipped(directory / "kept" / lab, json.dumps(body).encode())
    shutil.copy(pyodide / "pyodide.mjs", directory / "pyodide")
    write_whole(directory / "made.json", json.dumps(told))
    for script in ("python.mjs", "worker.js"):
        write_whole(directory / script, asset(script))


def trim(library: Path, loaded: Container[str] = ()) -> None:
    """Leave out of Python's own library what no page can use. Modules that are loaded become zeros:
    the memory knows where the others lie."""
    with ZipFile(library) as whole:
        left = {name: whole.read(name) for name in whole.namelist() if not UNUSABLE.match(name)}
    with ZipFile(library, "w", ZIP_STORED) as short:  # a second zip around it does better
        for name, body in left.items():
            short.writestr(ZipInfo(name), bytes(len(body)) if module(name) in loaded else body)


def module(path: str, at: str = "") -> str:
    """The module that a file below `at` is of; no module's name for other files."""
    return (
        path.removeprefix(f"{at}/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )


def files(root: Path, at: str, unused: Iterable[str] = ()) -> dict[str, str]:
    """Where a file shall be -> its bytes, as text."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    left_out = {"__pycache__", *unused}
    return {f"{at}/{path}": text(root / path) for path in found if not left_out & {*path.parts}}


def text(path: Path) -> str:
    return path.read_bytes().decode("latin-1")


def zipped(path: Path, body: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    write_whole(path.with_name(f"{path.name}.gz"), gzip.compress(body, mtime=0))
