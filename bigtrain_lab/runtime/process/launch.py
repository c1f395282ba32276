"""Launch a program on fresh ranks: one process each, forked from a server that has torch loaded
already (server.py).

A fresh process for every rank of every run means that nothing of a failed run survives. Programs
typed in a notebook travel by value.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import cloudpickle

from ...core import Cost, Impossible, Mesh, refuse, write_whole
from ...core.files import printable
from ..devices import Devices, Node, choose, nccl_here, visible
from ..failure.faults import Fault
from ..machine import environment, versions
from ..memory.capacity import refuse_beyond_memory
from ..record.kept import FORMAT, MOST_RANKS, settings_json
from ..record.run import Run
from ..torchrun.attach import run_in_place
from . import border
from .child import Job
from .end import INTERRUPTED, forget, reserve
from .pulse import this_process
from .server import interrupts_held, warm
from .watch import Watch

LONGEST_SLUG = 60  # letters of a run's name in that of its directory


def launch(
    program,
    ranks: int = 4,
    *,
    mesh: Mesh | None = None,
    cost=None,
    name: str = "run",
    settings: dict | None = None,
    steps: int = 1,
    directory=None,
    seed: int = 0,
    clock: bool = True,
    record: bool = True,
    stall_s: float = 30.0,
    jitter_s: float = 0.0,
    watts=None,
    threads: int = 1,
    device: str = "cpu",
    facts=None,
    informed=None,
    fault: Fault | None = None,
    capacity_bytes=None,
    relief: str = "",
    needed_bytes=None,
    least_bytes=None,
    ledger: bool = False,
) -> Run:
    """Start `program(rank) -> {name: array}` on that many ranks and return at once.

    mesh       names the ranks' axes (default: one axis, "world")
    cost       prices the modelled clock; without it, or with clock=False, only wall times are
               recorded
    watts      of one device, for the energy
    directory  where the run is kept; must not exist or be empty (default: runs/<time>-<name>-<id>,
               here)
    record     False: no log, no clocks, no stall limit but for a rank that somebody stops; plain
               groups, for benchmarks
    stall_s    a run is ended as hanging once no rank has logged, printed or computed for so long
               (progress.py; what is printed under torchrun does not count)
    jitter_s   each operation first sleeps a random time up to this
    threads    a rank computes with so many in every launcher: with another number, sums are rounded
               otherwise
    device     "cpu"; "auto" takes GPUs where they are, "cuda" insists on them (devices.py; no GPU
               was there to test it on)
    facts      a function -> dict that the settings keep as "facts": what was measured before
    informed   facts -> the program, where it depends on them: under torchrun rank 0's facts hold
               for all
    fault      what goes wrong on purpose, and where (faults.py)
    capacity_bytes  what each rank's device holds: a rank whose ledger counts more fails
                    (capacity.py); None: what the cost says
    relief     what would need less memory, a sentence; such a failure ends with it
    needed_bytes  the predicted peak of each rank: no rank is started where those of this machine
                  need more than it has available
    least_bytes   a smaller number that is found sooner: where these are too many, the peak is not
                  asked for
    ledger     count every storage that an operator returns (ledger.py), not only what autograd
               saves and what the program declares: slower

    Under torchrun the program runs here, as the rank that torchrun says, and launch returns when it
    is done. Each rank runs its own program, whose code must be the same on all. Cost, facts and
    directory are rank 0's, and travel as values. `cost`, `facts`, `watts`, `capacity_bytes`,
    `needed_bytes`, `least_bytes` may be functions: of all ranks of torchrun, only rank 0 calls
    them. Impossible where the arguments cannot be, the directory cannot be written, or, without
    torchrun, the program cannot travel.
    """
    for word, number, most, asks in (
        ("ranks", ranks, MOST_RANKS, f"launch a whole number of ranks from 1 to {MOST_RANKS}"),
        ("steps", steps, inf, "launch a whole number of steps, at least 1"),
        ("threads", threads, inf, "give each rank a whole number of threads, at least 1"),
    ):
        refuse(
            (
                not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most,
                f"{word} is {number!r}: {asks}.",
            )
        )
    if given := border.place_given():
        border.refuse_other_size(given, ranks)
    mesh = mesh or Mesh(world=ranks)
    refuse(
        (
            mesh.size != ranks,
            f"The mesh has {mesh.size} ranks and ranks is {ranks}: make them equal.",
        ),
        (
            not 0 < stall_s < inf or not 0 <= jitter_s < inf,
            f"stall_s is {stall_s!r} and jitter_s is {jitter_s!r}: give a stall limit above 0 and a"
            " jitter of 0 or more, in seconds.",
        ),
    )
    fault = fault if fault and fault.kind != "none" else None
    if fault:
        fault.refuse(ranks)
        refuse(
            (not record, f"A fault ({fault.kind}) strikes at a recorded action: leave record=True.")
        )
    clock &= record and cost is not None
    asked = {
        "name": name,
        "ranks": ranks,
        "mesh": dict(mesh.axes),
        "steps": steps,
        "seed": seed,
        "clock": clock,
        "ledger": ledger,
        "record": record,
        "stall_s": stall_s,
        "jitter_s": jitter_s,
        "threads": threads,
        "device": device,
        **({"fault": asdict(fault)} if fault else {}),
    }

    def settle(hosts: list[dict], devices: Devices) -> Callable[[], Job]:
        """All that is asked for only once it is needed; then what makes the run's directory."""
        for bytes_of, how in ((least_bytes, "at least "), (needed_bytes, "")):
            if needed := bytes_of() if callable(bytes_of) else bytes_of:
                refuse_beyond_memory(needed, hosts, devices.of, relief, how)
        found = cost() if callable(cost) and clock else cost
        priced = Cost.of(found) if clock and found is not None else None
        priced = fault.priced(priced) if fault and priced else priced
        limit = capacity_bytes() if callable(capacity_bytes) else capacity_bytes
        limit = priced.capacity_bytes if limit is None and priced else limit
        about = {
            "bigtrain-run": FORMAT,
            **asked,
            "clock": priced is not None,
            "unit": priced.unit if priced else "s",
            "ticks_per_unit": priced.ticks_per_unit if priced else 10**9,
            "watts": watts() if callable(watts) else watts,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "launcher": this_process(),
            "hosts": hosts,
            "settings": (
                (settings or {}) | ({"facts": known} if facts and (known := facts()) else {})
            ),
        }

        def begin() -> Job:
            place = new_directory(
                directory, name, about, environment() | {"devices": devices._asdict()}
            )
            return Job(
                str(place),
                mesh,
                priced,
                time.monotonic_ns(),
                "",
                seed,
                threads,
                record,
                jitter_s,
                os.getcwd(),
                fault,
                devices.of,
                devices.backend,
                limit,
                relief,
                ledger,
            )

        return begin

    if given:
        told = {**asked, **versions(), "settings": settings or {}}
        return run_in_place(
            given, program, told, lambda hosts, devices: settle(hosts, devices)(), stall_s, informed
        )
    try:
        travelling = cloudpickle.dumps(program)
    except Exception as error:
        raise Impossible(
            f"The program cannot travel to the ranks ({type(error).__name__}: {error}): "
            "let it make open files, locks and widgets itself."
        ) from error
    warm()
    begin = settle([], choose([Node(ranks, visible())], device, nccl_here()))
    watch = None
    try:
        with interrupts_held():  # from the directory's beginning until it is watched
            job = begin()
            try:
                watch = Watch(job, travelling, stall_s)
            except (OSError, RuntimeError) as error:  # no file or no thread can be had
                forget(Path(job.directory))
                raise Impossible(
                    f"The ranks cannot be watched ({error}): close files or end programs, and run"
                    " again."
                ) from error
        return Run(watch.directory, watch)
    except KeyboardInterrupt:
        if watch:
            watch.stop(INTERRUPTED)
        raise


# -- the directory ---------------------------------------------------------------------------------


def new_directory(directory, name: str, about: dict, ran_on: dict) -> Path:
    """Make the run's directory, with its settings and environment; Impossible, and nothing made,
    where that fails."""
    if directory is None:
        now, slug = (
            datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
            re.sub("[^A-Za-z0-9_.-]+", "-", str(name))[:LONGEST_SLUG],
        )
        directory = Path("runs") / f"{now}-{slug}-{secrets.token_hex(4)}"
    kept = settings_json(about)
    try:
        path = Path(directory).absolute()
        if not (full := path.exists() and (not path.is_dir() or any(path.iterdir()))):
            path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = (
            error.strerror or error if isinstance(error, OSError) else "no file can have this name"
        )
        raise Impossible(
            f"Cannot make the run directory {printable(str(directory))}: {why}; choose another"
            " directory."
        ) from error
    refuse(
        (
            full,
            f"{path} is not empty: choose another directory, or open the run that is "
            "there with Run.open.",
        )
    )
    try:
        write_whole(path / "settings.json", kept)
        write_whole(path / "environment.json", json.dumps(ran_on, indent=1))
        reserve(path)
    except Impossible:
        forget(path)
        raise
    return path
