"""Make or mend this project's own virtual environment, `.venv`. The Makefile calls it before
everything else.

    python3 tools/setup.py [--python PYTHON] [--torch auto|cpu|cuda]     make .venv ready (quick
                                                                         when it is)
    python3 tools/setup.py browser                                       have a Chromium for the
                                                                         browser tests

An environment is ready when its stamp, written last and removed before anything changes, matches
pyproject.toml, constraints.txt and this folder, and its packages have the pinned versions. One
without a stamp is removed and made anew: a package whose copying was cut short looks installed to
pip. Standard library only, and readable by old Pythons, so that they can say that they are too old.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "ready.json"
OLDEST = (3, 11)
PROBE = """
import importlib.metadata as metadata, json, pip, sys
versions = {}
for name in sys.argv[1:]:
    try: versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError: versions[name] = None
print(json.dumps({"base": sys.base_prefix, "python": sys.version, "versions": versions}))
"""


FAILED = (
    "pip could not finish (its message is above): mend that and run the same command again; the"
    " half-made .venv will be made anew."
)


class Refused(Exception):
    """One sentence that says what to do."""


def pins(text):
    """{name: version} of a constraints file's `name==version` lines."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return dict(line.split("==") for line in lines if line)


def same_release(installed, pin):
    """Whether a version is the pinned one in any build: 2.13.0+cpu is 2.13.0."""
    return installed is not None and installed in (pin, pin + "+" + installed.partition("+")[2])


def torch_requirements(choice, gpu, system, pin):
    """The requirements to try in turn for torch, best first.

    Where pip's sources hold both builds, `==2.13.0` alone takes the CPU one (a local version sorts
    after the plain one), so CUDA has to exclude it. macOS has a single build, without a local
    version.
    """
    plain, cpu = "torch==" + pin, "torch==" + pin + "+cpu"
    if choice not in ("auto", "cpu", "cuda"):
        raise Refused(
            f"TORCH={choice} is not a build of torch: say TORCH=auto, TORCH=cpu or TORCH=cuda."
        )
    if system == "Darwin":
        return [plain]
    if choice == "cuda" or (choice == "auto" and gpu):
        return [plain + ",!=" + pin + "+cpu"]
    return [cpu] if choice == "cpu" else [cpu, plain]


def nvidia_gpu():
    """Whether this machine has an NVIDIA GPU with its driver."""
    devices = pathlib.Path("/proc/driver/nvidia/gpus")
    if devices.is_dir() and any(devices.iterdir()):
        return True
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listing.returncode == 0 and b"GPU" in listing.stdout


def venv_python():
    return str(VENV / "bin" / "python")


def probe(names):
    """What `.venv` holds, or None when its Python or its pip does not work."""
    try:
        answer = subprocess.run(
            [venv_python(), "-I", "-c", PROBE] + list(names),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        return json.loads(answer.stdout.decode()) if answer.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def inputs():
    """A digest of what decides which packages `.venv` holds."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    decisive = [
        settings["build-system"],
        settings["project"],
        settings["tool"]["setuptools"],
        sorted(pins((ROOT / "constraints.txt").read_text()).items()),
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def stamp():
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def remove(path):
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def administrator():
    """The words in front of a command that needs root: none, sudo without a password, or None where
    neither works."""
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(
            ["sudo", "-n", "true"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode
        == 0
    ):
        return ["sudo", "-n"]
    return None


def apt_install(prefix, *packages):
    """Install Debian packages; False where that is not possible."""
    if prefix is None or not shutil.which("apt-get"):
        return False
    print("Installing Debian's {} ...".format(" and ".join(packages)), flush=True)
    apt = prefix + ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    subprocess.run(apt + ["update"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        apt + ["install", "--no-install-recommends"] + list(packages), stdin=subprocess.DEVNULL
    )
    return done.returncode == 0


def create():
    """An empty `.venv` with pip."""
    if subprocess.run(
        [sys.executable, "-c", "import venv, ensurepip"], stderr=subprocess.DEVNULL
    ).returncode:
        package = "python{}.{}-venv".format(*sys.version_info[:2])
        if not apt_install(administrator(), package):
            raise Refused(
                f"This Python cannot make virtual environments: run `apt-get install {package}` as"
                " root (or install your system's package for Python's venv module) and try again."
            )
    remove(STAMP)
    if VENV.exists():
        shutil.rmtree(str(VENV))
    if subprocess.run(
        [sys.executable, "-m", "venv", str(VENV)], stdin=subprocess.DEVNULL
    ).returncode:
        raise Refused(
            f"Python could not make {VENV}: its message is above; check the free disk space and"
            " that the folder is yours, and try again."
        )


def pip_install(*words, constrained=True):
    """Run `pip install` in `.venv`. Returns "" or what pip said of its failure."""
    command = [venv_python(), "-m", "pip", "install", "--no-input"] + list(words)
    if not sys.stdout.isatty():
        command.append("-q")
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    environment.pop("PIP_CONSTRAINT", None)
    if constrained:
        environment["PIP_CONSTRAINT"] = (ROOT / "constraints.txt").as_uri()
    pip = subprocess.Popen(
        command, cwd=str(ROOT), env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    said = []
    for line in pip.stderr:
        said.append(line.decode(errors="replace"))
        if (
            "the requirement torch" not in said[-1]
            and "distribution found for torch" not in said[-1]
        ):
            sys.stderr.write(said[-1])
    return "".join(said) or "no reason" if pip.wait() else ""


def install_torch(wanted):
    """Install the first of these requirements that pip's sources have; return it.

    Alone and without constraints, because pip says "conflict" for a constrained requirement that it
    cannot find.
    """
    for requirement in wanted:
        print(f"Installing {requirement} into .venv ...", flush=True)
        reason = pip_install("--no-deps", requirement, constrained=False)
        if not reason:
            return requirement
        if "No matching distribution found for torch" not in reason:
            raise Refused(FAILED)
        if requirement != wanted[-1]:
            print(
                "\nNo GPU was found, and none of pip's sources has torch's CPU build. Taking the"
                " default build, which on Linux\nbrings several gigabytes of CUDA libraries. To get"
                " the small one, stop now (Ctrl-C), put the index that the\nstart page of"
                " pytorch.org names for CPU into PIP_EXTRA_INDEX_URL, and run this again.\n",
                flush=True,
            )
    raise Refused(
        "None of pip's sources has {} for Python {}.{}: put the index that the start page of"
        " pytorch.org names for your choice into PIP_EXTRA_INDEX_URL, or choose another build with"
        " TORCH=auto, or another Python with PYTHON=.".format(wanted[-1], *sys.version_info[:2])
    )


def install(choice):
    """Fill `.venv`, which has no stamp meanwhile. Returns the build of torch that pip was asked
    for."""
    pin = pins((ROOT / "constraints.txt").read_text())["torch"]
    remove(STAMP)
    requirement = install_torch(torch_requirements(choice, nvidia_gpu(), platform.system(), pin))
    print(
        "Installing the project and what it needs; the first time this takes minutes ...",
        flush=True,
    )
    if pip_install("-e", ".[test]"):
        raise Refused(FAILED)
    keep_lab_quiet()
    return "cuda" if "!=" in requirement else "cpu" if "+cpu" in requirement else "plain"


def keep_lab_quiet():
    """JupyterLab asks no other machine for news or updates, covers no lesson with the question
    whether it may, and shows no buttons of nbgrader's, which are for instructors."""
    settings = VENV / "share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    news = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "overrides.json").write_text(
        json.dumps({"@jupyterlab/apputils-extension:notification": news})
    )
    page = VENV / "etc/jupyter/labconfig"
    page.mkdir(parents=True, exist_ok=True)
    (page / "page_config.json").write_text(
        json.dumps({"disabledExtensions": {"@jupyter/nbgrader": True}})
    )


def prepare(python, choice):
    """Make `.venv` ready; say nothing when it already is."""
    torch_requirements(choice, False, "Linux", "")  # refuses an unknown choice before anything else
    pinned, last = pins((ROOT / "constraints.txt").read_text()), stamp()
    if choice == "auto":
        choice = last.get("asked", "auto")  # a build once asked for by name is kept
    found = (
        probe(pinned) if last.get("root") == str(ROOT) else None
    )  # its scripts name the folder it was made in
    if found and python and [found["base"], found["python"]] != [sys.base_prefix, sys.version]:
        print("PYTHON names another Python than .venv was made by.", flush=True)
        found = None
    exact = found and all(
        same_release(found["versions"][name], pin) for name, pin in pinned.items()
    )
    if exact and last.get("inputs") == inputs() and choice in (last["torch"], last["asked"]):
        return
    if found is None:
        if VENV.exists():
            print(
                "Making .venv anew: what is there is half-made, broken, moved or another Python's.",
                flush=True,
            )
        create()
    built = install(choice)
    found = probe(pinned)
    wrong = [
        name
        for name, pin in pinned.items()
        if not (found and same_release(found["versions"][name], pin))
    ]
    if wrong:
        raise Refused(
            "After the installation {} did not have the version that constraints.txt pins: remove"
            " .venv and run the same command again.".format(", ".join(wrong))
        )
    record = {"inputs": inputs(), "root": str(ROOT), "torch": built, "asked": choice}
    half = STAMP.with_suffix(".part")
    half.write_text(json.dumps(record))
    half.replace(STAMP)
    print("Ready: .venv with torch {}.".format(found["versions"]["torch"]), flush=True)


def find_browser():
    """The path of a Chromium that tests can drive, or None: BROWSER_PATH, the system's, or
    playwright's own."""
    named = os.environ.get("BROWSER_PATH")
    if named and os.access(named, os.X_OK):
        return named
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        path = shutil.which(name)
        # Ubuntu's chromium-browser may be a script that only says to install a snap
        if (
            path
            and subprocess.run(
                [path, "--version"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ).returncode
            == 0
        ):
            return path
    ask = (
        "from playwright.sync_api import sync_playwright as s\nwith s() as p:"
        " print(p.chromium.executable_path)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", ask],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    path = answer.stdout.decode().strip()
    return path if answer.returncode == 0 and os.access(path, os.X_OK) else None


def prepare_browser():
    """Have a Chromium, else say loudly what goes untested; in CI that is an error."""
    if find_browser():
        return
    if os.geteuid() == 0 and apt_install([], "chromium", "fonts-dejavu-core") and find_browser():
        return
    print("Fetching playwright's Chromium for the browser tests ...", flush=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "playwright", "install", "chromium"],
            stdin=subprocess.DEVNULL,
            timeout=600,
        )
    if find_browser():
        return
    sentence = (
        "no Chromium was found or could be fetched: install your system's `chromium` package, or"
        " set BROWSER_PATH to one"
    )
    if os.environ.get("CI"):
        raise Refused(f"The browser tests may not be skipped in CI, and {sentence}.")
    print(f"\n*** THE BROWSER TESTS WILL BE SKIPPED: {sentence}. ***\n", flush=True)


def main():
    if sys.version_info < OLDEST:
        raise Refused(
            f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed and {sys.executable} is"
            f" {platform.python_version()}: name a newer one, as in `make lab PYTHON=python3.12`."
        )
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", nargs="?", choices=("environment", "browser"), default="environment"
    )
    parser.add_argument(
        "--python",
        default="",
        help="non-empty: an existing .venv made by another Python is replaced",
    )
    parser.add_argument("--torch", default="auto", help="auto, cpu or cuda")
    arguments = parser.parse_args()
    with open(str(ROOT / "constraints.txt")) as lock:
        with contextlib.suppress(
            ImportError, OSError
        ):  # two makes at once take turns where the system can lock
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        if arguments.what == "browser":
            prepare_browser()
        else:
            prepare(arguments.python, arguments.torch)


if __name__ == "__main__":
    try:
        main()
    except Refused as refusal:
        sys.exit(f"\n{refusal}")
    except KeyboardInterrupt:
        sys.exit(
            "\nInterrupted: run the same command again, and what is half-made will be made anew."
        )
