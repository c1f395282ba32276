"""How a run ends: what exit codes mean, how long whoever watches waits, and the note that is kept of it."""

import json
from pathlib import Path

FAILED, UNWRITABLE = 1, 74  # exit codes of a rank; any other one but 0 was the program's own doing
INTERRUPTED = "The run was interrupted."
LOOK_S = 0.1  # between looks at the ranks and their logs
VICTIMS_S = 2.0  # how long the rank that made victims may take to say so, or to end
STACKS_S = 2.0  # how long a dump of stacks may take at most, on a machine that is busy


def noted_end(directory: Path) -> dict | None:
    """The state and the diagnosis that were noted at the end of the run, and the rank that told of it; None where there is no such note, or a damaged one."""
    try:
        end = json.loads((directory / "end.json").read_text(encoding="utf-8"))
        return {"state": end["state"], "diagnosis": end["diagnosis"], "teller": end.get("teller")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
