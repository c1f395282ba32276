"""One list of packages in three files, and the set-up that installs it."""

import importlib.metadata as metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tools import setup

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [
    line
    for extra in PROJECT["optional-dependencies"].values()
    for line in extra
    if not line.startswith("bigtrain_lab[")
]
RANGES = {
    canonicalize_name(r.name): r.specifier
    for r in map(Requirement, PROJECT["dependencies"] + EXTRAS)
}
PINS = {
    canonicalize_name(name): pin
    for name, pin in setup.pins((ROOT / "constraints.txt").read_text()).items()
}


def test_constraints_pin_every_direct_dependency_and_nothing_else():
    assert PINS.keys() == RANGES.keys()


@pytest.mark.parametrize("name", RANGES)
def test_each_pin_lies_in_its_range_and_is_what_is_installed(name):
    assert len(RANGES[name]) > 0, f"pyproject.toml gives {name} no range"
    assert RANGES[name].contains(PINS[name], prereleases=True)
    assert SpecifierSet(f"=={PINS[name]}").contains(metadata.version(name), prereleases=True)


def test_environment_yml_names_the_same_packages_in_the_same_versions():
    *conda, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda = dict(line.partition("=")[::2] for line in conda)
    assert SpecifierSet(PROJECT["requires-python"]).contains(conda.pop("python"))
    assert conda.pop("pip") == "" and pip["pip"].pop() == "-e ."
    named = {{"pytorch-cpu": "torch"}.get(name, name): version for name, version in conda.items()}
    named |= {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in pip["pip"]}
    assert named == PINS


def test_every_file_in_the_package_that_is_not_python_travels_with_it():
    package = ROOT / "bigtrain_lab"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["*"]
    shipped = {path for pattern in patterns for path in package.rglob(pattern)}
    others = {
        path for path in package.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}
    }
    assert package / "view" / "player" / "player.js" in shipped
    assert others == {path for path in shipped if path.suffix != ".py"}


def test_the_command_of_the_shell_and_python_dash_m_answer():
    entries = metadata.distribution("bigtrain_lab").entry_points
    program = "bigtrain_lab.cli:main"
    assert {e.name: e.value for e in entries} == {"bigtrain": program, "bigtrain_lab": program}
    assert all(callable(entry.load()) for entry in entries)
    command = [sys.executable, "-m", "bigtrain_lab", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0 and "predict" in answer.stdout, answer.stderr


@pytest.mark.parametrize(
    "choice, gpu, system, wanted",
    [
        ("auto", False, "Linux", ["torch==2.13.0+cpu", "torch==2.13.0"]),
        ("auto", True, "Linux", ["torch==2.13.0,!=2.13.0+cpu"]),
        ("cpu", True, "Linux", ["torch==2.13.0+cpu"]),
        ("cuda", False, "Linux", ["torch==2.13.0,!=2.13.0+cpu"]),
        ("auto", False, "Darwin", ["torch==2.13.0"]),
    ],
)
def test_the_build_of_torch_that_is_asked_for(choice, gpu, system, wanted):
    assert setup.torch_requirements(choice, gpu, system, "2.13.0") == wanted


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The set-up in a folder of its own, its two slow steps replaced by notes of having been
    called."""
    calls = []
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    installed = dict(setup.pins((ROOT / "constraints.txt").read_text()), torch="2.13.0+cpu")
    answer = {"base": sys.base_prefix, "python": sys.version, "versions": installed}

    def create():
        calls.append("create")
        setup.VENV.mkdir(exist_ok=True)

    def pip_install(*words, constrained=True):
        assert not setup.STAMP.exists(), "an installation that is cut short would look finished"
        assert constrained == (words == ("-e", ".[test]"))
        if constrained:
            assert calls[-1].startswith("torch"), (
                "the project before torch could bring any build of it"
            )
        else:
            calls.append(words[-1])
        return ""

    for name, replaced in {
        "ROOT": tmp_path,
        "VENV": tmp_path / ".venv",
        "STAMP": tmp_path / ".venv" / "ready.json",
        "nvidia_gpu": lambda: False,
        "probe": lambda names: answer,
        "create": create,
        "pip_install": pip_install,
    }.items():
        monkeypatch.setattr(setup, name, replaced)
    setup.prepare("", "auto")
    assert calls == ["create", "torch==2.13.0+cpu"]
    calls.clear()
    return calls, answer


def test_a_second_installation_does_nothing(project):
    calls, _ = project
    setup.prepare("", "auto")
    setup.prepare(sys.executable, "cpu")
    assert calls == []


def test_a_changed_list_or_another_build_is_installed_in_place(project):
    calls, answer = project
    stamp = setup.STAMP.read_text()
    answer["versions"]["numpy"] = "1.0"
    with pytest.raises(setup.Refused, match="numpy did not have the version"):
        setup.prepare("", "auto")
    assert calls == ["torch==2.13.0+cpu"]
    calls.clear()
    answer["versions"]["numpy"] = PINS["numpy"]
    setup.STAMP.write_text(stamp)
    setup.prepare("", "cuda")
    assert calls == ["torch==2.13.0,!=2.13.0+cpu"]
    setup.prepare("", "auto")
    assert calls[1:] == [], "a build once asked for by name is kept"


def test_no_cpu_build_of_torch_falls_back_with_a_sentence(project, monkeypatch, capsys):
    calls, _ = project

    def pip_install(*words, constrained=True):
        calls.append(words[-1])
        return (
            "ERROR: No matching distribution found for torch==2.13.0+cpu"
            if "+cpu" in words[-1]
            else ""
        )

    monkeypatch.setattr(setup, "pip_install", pip_install)
    setup.STAMP.unlink()
    setup.prepare("", "auto")
    assert calls == ["create", "torch==2.13.0+cpu", "torch==2.13.0", ".[test]"]
    assert "PIP_EXTRA_INDEX_URL" in capsys.readouterr().out


@pytest.mark.slow
def test_the_wheel_alone_opens_the_lessons(tmp_path):
    """In an empty folder, without this repository."""
    source, alone = tmp_path / "source", tmp_path / "alone"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-c", "from setuptools.build_meta import build_wheel as b; b('dist')"]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    zipfile.ZipFile(next((source / "dist").glob("*.whl"))).extractall(alone / "site")
    answered = subprocess.run(
        [sys.executable, "-m", "bigtrain_lab", "lab", "--folder", "mine", "--", "--version"],
        cwd=alone,
        env={**os.environ, "PYTHONPATH": str(alone / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answered.stdout.strip() == metadata.version("jupyterlab")
    own = {str(path.relative_to(alone / "mine")) for path in (alone / "mine").rglob("*.ipynb")}
    assert own == {
        name.removeprefix("notebooks/")
        for name in listed.stdout.decode().split("\0")
        if name.startswith("notebooks/") and name.endswith(".ipynb")
    }
