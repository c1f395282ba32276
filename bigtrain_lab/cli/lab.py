"""`bigtrain lab`: the lessons in JupyterLab."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

FIRST = "00_start_here.ipynb"


def lab(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    folder: Path | None = None,
    language: str = "",
) -> None:
    """Make your own copies of the lessons, and open them in JupyterLab; what you have written into
    a copy stays. More words go to JupyterLab.

    Parameters
    ----------
    folder
        where the copies are; without, lessons, or lessons-zh
    language
        of lessons, panels and checks, such as zh (中文); English without
    """
    from ..lesson import copies

    folder = (folder or Path(f"lessons-{language}" if language else "lessons")).resolve()
    copies(folder, language=language)
    command = [
        *(sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1", "--ServerApp.port_retries=50"),
        f"--ServerApp.root_dir={folder.parent}",
        f"--FileContentsManager.preferred_dir={folder.name}",
        f"--LabApp.default_url=/lab/tree/{folder.name}/{FIRST}",
        *["--allow-root"] * (os.geteuid() == 0),
        *words,
    ]
    sys.stdout.flush()
    os.execve(
        sys.executable,
        command,
        {
            **os.environ,
            # the kernels of the lessons are of this Python, whatever else is installed
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "BIGTRAIN_LANGUAGE": language or os.environ.get("BIGTRAIN_LANGUAGE", ""),
        },
    )
