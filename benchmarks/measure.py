"""How a benchmark measures: alternating, several times, median; and how it writes what it found."""

import json
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch

RESULTS = Path(__file__).parent / "results"


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def alternating(rounds: int, **contenders) -> dict[str, float]:
    """Median seconds of each contender, measured in turns so that a disturbance meets all of
    them."""
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            times[name].append(seconds(function))
    return {name: statistics.median(taken) for name, taken in times.items()}


def machine() -> dict:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(),
        "memory_GiB": round(psutil.virtual_memory().total / 2**30),
    }


def write(name: str, rows: list[dict]) -> None:
    """One JSON and one markdown table a benchmark: rows of what, value, unit, target, met."""
    RESULTS.mkdir(exist_ok=True)
    about = machine()
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"machine": about, "rows": rows}, indent=1) + "\n"
    )
    table = [
        f"# {name}",
        "",
        ", ".join(f"{k} {v}" for k, v in about.items()),
        "",
        "| what | value | target | reached |",
        "|---|---|---|---|",
    ]
    table += [
        f"| {r['what']} | {r['value']:.4g} {r['unit']} | {r.get('target', '')} |"
        f" {r.get('reached', '')} |"
        for r in rows
    ]
    (RESULTS / f"{name}.md").write_text("\n".join(table) + "\n")
    print("\n".join(table), flush=True)


def row(
    what: str, value: float, unit: str, at_most: float | None = None, at_least: float | None = None
) -> dict:
    """A line of the table; "no" where the target was missed."""
    made = {"what": what, "value": value, "unit": unit}
    if at_most is not None:
        made |= {
            "target": f"at most {at_most:g} {unit}",
            "reached": "yes" if value <= at_most else "no",
        }
    if at_least is not None:
        made |= {
            "target": f"at least {at_least:g} {unit}",
            "reached": "yes" if value >= at_least else "no",
        }
    return made
