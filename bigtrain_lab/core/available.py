"""How much memory this machine still has for new processes: what the system has left, and what a
container grants."""

from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that new processes can take before the system, or the limit of a container, ends
    one."""
    import psutil

    try:
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:  # no Linux
        groups = ""
    return max(0, min([psutil.virtual_memory().available, *granted(groups)]))


def granted(groups: str, root: Path = CGROUPS) -> Iterator[int]:
    """What each control group of this process, and those that it is in, still grants (cgroups(7),
    versions 1 and 2). Pages of files that the system would give back count as free.

    groups   the lines of /proc/self/cgroup. A container may not see its own path there: then its
             limit is at the root.
    """
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            files, places = (
                ("memory.max", "memory.current", "inactive_file"),
                (root, root / "unified"),
            )
        elif "memory" in controllers.split(","):
            files, places = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
                (root / "memory", root),
            )
        else:
            continue
        inner = Path(path.lstrip("/"))
        for folder in (place / part for place in places for part in (inner, *inner.parents)):
            try:
                limit, used = (
                    int((folder / name).read_text(encoding="utf-8")) for name in files[:2]
                )
            except (OSError, ValueError):  # no such group here, or the word "max"
                continue
            yield limit - used + freed(folder / "memory.stat", files[2])


def freed(path: Path, name: str) -> int:
    """A number of a group's memory.stat; 0 where it is not told."""
    try:
        return int(
            dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())[name]
        )
    except (OSError, ValueError, KeyError):
        return 0
