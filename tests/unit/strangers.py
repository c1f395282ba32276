"""Run directories made by a stranger: `crafted` by hand, with one hostile value, or `damaged` by a
disk or a copy.

Each is made from one real run by its number alone. `opened` answers what the command line says of
it.
"""

import io
import json
import os
import random
import re
import shutil
import zlib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np

SMALL = "--ranks 2 --micro-batches 2 --steps 2 --layers 2 --width 16 --heads 2 --sequence 8".split()
TAG = "<img src=x onerror=window.hacked=1>"
CONTROL = "\x1b]0;owned\x07\x1b[2Jname"
HOSTILE = (
    None,
    True,
    -1,
    0,
    2,
    7,
    400_000,
    2**63,
    10**30,
    -(10**30),
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "5",
    TAG,
    CONTROL,
    "a\0b",
    "a\nb",
    "\ud800",
    "x" * 300,
    "é" * 200,
    "../../../../etc/passwd",
    "</script><script>window.hacked=1</script>",
    [],
    {},
    [[]],
    [1, 2],
    [None],
    {"a": 1},
    {"__class__": "os.system"},
    ["x", -5, 1.0],
    [["rank", 10**9]],
)
RAW = {
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "long number": b'{"bigtrain-run": ' + b"9" * 10_000 + b"}",
    "nothing": b"",
    "a list": b"[]",
    "text": b"hello\n",
    "NUL": b"\0" * 10_000,
    "not UTF-8": b'{"state": "\xff\xfe"}\n',
    "a long line": b"[" + b"1," * 2_000_000 + b"1]\n",
    "lone surrogate": b'{"state": "\\ud800"}\n',
    "pickle": b"cos\nsystem\n(S'touch hacked'\ntR.",
    "many lines": b"[1]\n" * 300_000,
}


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(b'["bigtrain-run",2,{"rank":0}]\n' if path.suffix == ".jsonl" else b"{")
        file.truncate(2**40)


FILES = {
    "a FIFO": os.mkfifo,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/tty": lambda path: path.symlink_to("/dev/tty"),
    "a directory": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a TiB of nothing": sparse,
    "gone": lambda path: None,
    **{name: lambda path, raw=raw: path.write_bytes(raw) for name, raw in RAW.items()},
}


def npy_header(shape: str, format: str) -> bytes:
    text = f"{{'descr': '{format}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def claimed(path: Path) -> None:
    """An npz whose array says that it has 373 GiB."""
    with ZipFile(path, "w") as file:
        file.writestr("a.npy", npy_header("(50000000000,)", "<f8"))


def bomb(path: Path) -> None:
    """64 MiB of zeros, 64 times, in a few kB."""
    with (
        ZipFile(path, "w", ZIP_DEFLATED, compresslevel=1) as file,
        file.open("a.npy", "w") as member,
    ):
        member.write(npy_header("(67108864,)", "|u1"))
        member.write(bytes(2**26))


ARRAYS = {TAG: np.zeros(3), "b": np.array(["x", "y"]), "c": np.array([np.nan, np.inf])}
RESULTS = {
    "373 GiB": claimed,
    "objects": lambda path: np.savez(path, a=np.array([{"a": 1}, os.getcwd], dtype=object)),
    "a zip bomb": bomb,
    "other arrays": lambda path: np.savez(path, **ARRAYS),
    **FILES,
}


def copied(source: Path, place: Path) -> Path:
    """A copy, opened later by somebody else: whatever launched it is not here."""
    shutil.copytree(source, place)
    tell(place, launcher=None)
    return place


def tell(directory: Path, **told) -> None:
    """Change what a run says of itself."""
    settings = directory / "settings.json"
    about = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps(about | told), encoding="utf-8")


def vouched(lines: list[str]) -> str:
    """A log with the checksum that its last line should have: a stranger can count it too."""
    body = "".join(f"{line}\n" for line in lines[:-1])
    done = [*json.loads(lines[-1])[:-1], zlib.crc32(body.encode())]
    return body + json.dumps(done, separators=(",", ":")) + "\n"


def change_json(path: Path, keys: list, value) -> None:
    whole = json.loads(path.read_text(encoding="utf-8"))
    at = whole
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(json.dumps(whole), encoding="utf-8")


def change_event(path: Path, choose: random.Random, value) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    kind = choose.choice(sorted({json.loads(line)[0] for line in lines[:-1]}))
    at = choose.choice(
        [number for number, line in enumerate(lines[:-1]) if line.startswith(f'["{kind}"')]
    )
    fields = json.loads(lines[at])
    column = choose.randrange(len(fields))
    fields[column] = value
    lines[at] = json.dumps(fields, separators=(",", ":"))
    path.write_text(vouched(lines), encoding="utf-8")
    return f"{path.name}: column {column} of {kind} is"


WAIT = {"rank": 0, "state": "waits", "what": "m", "on": [1], "line": "f.py:3, in f", "cycle": True}


def crafted(number: int, source: Path, place: Path) -> str:
    """Write directory `number` to `place`; returns what is hostile in it."""
    choose = random.Random(number)
    copied(source, place)
    value, rank = HOSTILE[choose.randrange(len(HOSTILE))], choose.randrange(2)
    about = f"{str(value)!a:.40}"
    settings = json.loads((place / "settings.json").read_text(encoding="utf-8"))
    values = [
        ("settings.json", list(settings), []),
        ("settings.json", [*settings["settings"], "facts", "unfinished", TAG], ["settings"]),
        ("end.json", ["state", "diagnosis", "waits", "teller"], []),
        ("end.json", list(WAIT), ["waits", 0]),
    ]
    match number % 8:
        case 0 | 1 | 2 | 3 as kind:
            file, names, within = values[kind]
            if kind == 3:
                waits = [WAIT, {**WAIT, "rank": 1, "on": [0]}]
                end = {"state": "failed", "diagnosis": TAG, "waits": waits}
                (place / file).write_text(json.dumps(end), encoding="utf-8")
            name = choose.choice(names)
            change_json(place / file, [*within, name], value)
            return f"{file}: {name} {within} is {about}"
        case 4 | 5:
            return f"{change_event(place / f'events-{rank}.jsonl', choose, value)} {about}"
        case 6:
            path = place / f"result-{rank}.npz"
        case _:
            path = place / choose.choice(
                [
                    "settings.json",
                    "end.json",
                    "environment.json",
                    "rank-0.log",
                    f"events-{rank}.jsonl",
                ]
            )
    how = choose.choice(list(RESULTS if path.suffix == ".npz" else FILES))
    path.unlink()
    RESULTS[how](path)
    return f"{path.name} is {how}"


def damaged(number: int, source: Path, place: Path) -> str:
    """The same for what a disk, a copy or a full quota leaves."""
    choose = random.Random(10_000 + number)
    copied(source, place)
    path, other = choose.sample(sorted(p for p in place.iterdir() if p.stat().st_size), 2)
    whole = path.read_bytes()
    at, length = choose.randrange(len(whole)), choose.randrange(1, 2000)
    flipped = bytearray(whole)
    for _ in range(choose.choice([1, 5, 100])):
        flipped[choose.randrange(len(whole))] ^= 1 << choose.randrange(8)
    damages = {
        "is cut off": whole[:at],
        "has flipped bits": bytes(flipped),
        "lost a block": whole[:at] + bytes(min(512, len(whole) - at)) + whole[at + 512 :],
        "has a part twice": whole[: at + length] + whole[at:],
        f"is what {other.name} was": other.read_bytes(),
    }
    damage = list(damages)[number % len(damages)]
    path.write_bytes(damages[damage])
    return f"{path.name} {damage} at {at}"


def opened(place: Path, source: Path, written: Path) -> list[str]:
    """What show, compare and export say of it; what each of them did wrong, in a line: nothing
    where all is well."""
    from bigtrain_lab.cli import main

    wrong = []
    for words in (
        ["show", place],
        ["compare", source, place],
        ["export", place, "--html", written / "page.html"],
        ["export", place, "--chrome", written / "trace.json"],
    ):
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = main([str(word) for word in words])
        except BaseException as error:  # noqa: B902  (whatever it is, a user would have seen it)
            wrong.append(f"{words[0]}: {type(error).__name__}: {str(error)[:200]}")
            continue
        said = err.getvalue()
        if (
            code not in (0, 2)
            or (code == 2) != bool(re.fullmatch(r"bigtrain: [^\n]+[.]\n", said))
            or re.search(r"Traceback|[\x00-\x08\x0b-\x1f\x7f]", out.getvalue() + said)
        ):
            wrong.append(f"{words[0]}: code {code}, {said[:300]!a}")
    page = written / "page.html"
    if page.exists():
        text = page.read_text(encoding="utf-8")
        if TAG in text or text.count("<script") != 2:
            wrong.append("export: a tag is in the page")
        page.unlink()
    return wrong


def tagged(source: Path, place: Path, state: str = "done") -> Path:
    """A run whose every text is a tag that would run a script, and which can be opened all the
    same."""
    copied(source, place)
    hosts = [
        {"name": TAG, "ranks": [rank], "ahead_s": 0.5 * rank, "error_s": 0.1 * rank}
        for rank in range(2)
    ]
    tell(place, name=TAG, unit=TAG, hosts=hosts)
    waits = [
        {**WAIT, "what": TAG, "line": TAG, "rank": rank, "on": [1 - rank]} for rank in range(2)
    ]
    (place / "end.json").write_text(
        json.dumps({"state": state, "diagnosis": TAG, "waits": waits}), encoding="utf-8"
    )
    for rank in range(2):
        path = place / f"events-{rank}.jsonl"
        *lines, last = path.read_text(encoding="utf-8").splitlines()
        wall = json.loads(last)[1]
        more = [
            ["span", wall, wall + 9, rank, lane, TAG, TAG, 20_000, 21_000, None]
            for lane in ("compute", TAG)
        ]
        more += [
            ["transfer", wall, wall + 9, 8, rank, TAG, TAG, TAG, 20_000, 21_000, 1 - rank, 8],
            ["memory", wall, rank, TAG, TAG, TAG, 21_000, 64],
            ["scalar", wall, rank, TAG, "scalar", TAG, 21_000, 1.5],
            ["scalar", wall, rank, TAG, "not finite", TAG, 21_000, float("nan")],
            ["histogram", wall, rank, TAG, TAG, TAG, 21_000, [0, 1], [2]],
            ["alive", wall, rank, TAG, 21_000, [["weights", TAG, 64, [8], TAG, TAG, TAG]]],
        ]
        path.write_text(
            vouched([*lines, *(json.dumps(line, separators=(",", ":")) for line in more), last]),
            encoding="utf-8",
        )
    return place
