"""The doctor: each check's ok, warn and fail, with a mend wherever something is wrong."""

import socket
from collections import Counter

import pytest
from packaging.specifiers import SpecifierSet

from bigtrain_lab import doctor
from bigtrain_lab.cli import main
from bigtrain_lab.core.cost import COLLECTIVES
from bigtrain_lab.runtime import calibrate
from bigtrain_lab.runtime.process.border import LOOPBACK
from bigtrain_lab.runtime.torchrun import peers

FOUND = {"ipywidgets": "8.1.9", "anywidget": "0.11.0", "jupyterlab": "4.6.6", "ipykernel": "7.4.0"}


def test_this_machine_can_run_the_labs(monkeypatch, tmp_path, tmp_path_factory, capsys):
    """All checks for real: two ranks meet, ports, packages. One line each; where tests run, nothing
    may fail."""
    monkeypatch.chdir(tmp_path)
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("bigtrain_lab.runtime.machine.cache_directory", lambda: str(cache))
    assert main(["doctor", "--ranks", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == list(doctor.CHECKS)
    assert all(line.split()[0] in ("ok", "warn") for line in lines)
    assert not list(tmp_path.iterdir()) and (cache / "bigtrain_lab" / "this-machine.json").exists()


@pytest.mark.parametrize(
    "checks, code, out",
    [
        (
            {
                "fine": lambda ranks: ("ok", "good"),
                "bad": lambda ranks: ("fail", "x" * 200, f"ask for {ranks} ranks."),
            },
            1,
            f"ok   fine     good\nfail bad      {'x' * 200}. Mend: ask for 3 ranks.\n",
        ),
        (
            {"odd": lambda ranks: ("warn", "slow", "wait.")},
            0,
            "warn odd      slow. Mend: wait.\n",
        ),
        (
            {"torch": lambda ranks: 1 / 0, "next": lambda ranks: ("ok", "still asked")},
            1,
            "fail torch    could not be checked: ZeroDivisionError: division by zero. Mend: install"
            " the project again (make setup).\nok   next     still asked\n",
        ),
    ],
    ids=["a failure", "a warning", "a check that breaks"],
)
def test_a_check_is_a_line_and_a_failed_one_the_exit_code(checks, code, out, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert (main(["doctor", "--ranks", "3"]), capsys.readouterr().out) == (code, out)


def test_the_census_of_constants_counts_those_that_are_fitted(monkeypatch, capsys):
    """A new constant that stands in no source changes this count: find it a source, or add it
    here."""
    monkeypatch.setattr("bigtrain_lab.runtime.this_machine", lambda measure: None)
    assert main(["doctor", "--constants"]) == 0
    told, rows = " ".join(capsys.readouterr().out.split()), doctor.constants()
    assert Counter(row.of for row in rows if row.tag == "assumed") == {
        "rtx3090-pcie": 8,
        "a100-nvlink": 3,
        "titan-rtx-nvlink": 6,
        "v100-nvlink": 6,
        "h100-nvlink": 4,
        "h200-nvlink": 6,
    }
    assert (
        all(row.source in told and f"({row.tag}: " in told for row in rows)
        and f"{len(rows)} constants: " in told
    )
    assert {f"{each}: passes, (n - 1) / n, wholes" for each in COLLECTIVES} <= {
        row.name for row in rows
    }


@pytest.mark.parametrize(
    "words, told",
    [
        (["--ranks", "0"], "ranks is 0: ask for at least 1."),
        (["--peer", "node1"], "'node1' is no peer: write host:port"),
    ],
)
def test_what_cannot_be_asked_is_refused(words, told, capsys):
    assert main(["doctor", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "visible, variable, driver, level, words",
    [
        (0, None, False, "ok", "no visible GPU: ranks compute on the CPU"),
        (
            4,
            None,
            True,
            "ok",
            (
                "4 visible GPUs for 4 ranks: ranks compute on the CPU unless --device auto asks for"
                " more (one GPU a rank"
            ),
        ),
        (
            2,
            None,
            True,
            "warn",
            (
                "(4 ranks share 2 GPUs through gloo: NCCL wants one for each rank), which this"
                " release has not been tested with"
            ),
        ),
        (8, "0,1,2,3,4,5,6,7", True, "ok", "8 visible GPUs"),
        (1, None, True, "warn", 'asks for cuda:1 fails with "invalid device ordinal"'),
        (2, "0,1", True, "warn", "CUDA_VISIBLE_DEVICES='0,1' hides the others"),
        (0, "7", True, "warn", "CUDA_VISIBLE_DEVICES='7' hides all"),
        (0, "", False, "ok", "no visible GPU"),
    ],
)
def test_devices(monkeypatch, visible, variable, driver, level, words):
    monkeypatch.setattr("bigtrain_lab.runtime.devices.visible", lambda: visible)
    monkeypatch.setattr(doctor, "nvidia_driver", lambda: driver)
    monkeypatch.setattr(
        doctor.os, "environ", {"CUDA_VISIBLE_DEVICES": variable} if variable is not None else {}
    )
    found = doctor.devices(4)
    assert found[0] == level and words in found[1]
    assert (len(found) == 3) == (level != "ok") and "ranks compute on the CPU" in found[1]


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"ipykernel": "7.3.1"}, "ipykernel 7.3.1, needs >=7.4"),
        ({"anywidget": None}, "anywidget is missing"),
    ],
)
def test_widgets(monkeypatch, wrong, words):
    monkeypatch.setattr(
        doctor,
        "needed",
        lambda: {
            "ipywidgets": SpecifierSet(">=8.1"),
            "anywidget": SpecifierSet(">=0.11"),
            "jupyterlab": SpecifierSet(">=4.6"),
            "ipykernel": SpecifierSet(">=7.4"),
        },
    )
    monkeypatch.setattr(doctor, "installed", FOUND.get)
    assert doctor.widgets(4)[0] == "ok"
    monkeypatch.setattr(doctor, "installed", {**FOUND, **wrong}.get)
    level, says, mend = doctor.widgets(4)
    assert level == "fail" and words in says and mend


def test_torch_without_cuda_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr(doctor, "nvidia_driver", lambda: True)
    level, says, mend = doctor.torch(4)
    assert level == "warn" and "yet this machine has an NVIDIA GPU" in says and "TORCH=cuda" in mend


def test_gloo_tells_why_ranks_do_not_meet(monkeypatch):
    monkeypatch.setattr(calibrate, "round_trips", lambda rank: 1 / 0)
    level, says, mend = doctor.gloo(2)
    assert level == "fail" and "ZeroDivisionError" in says and "\n" not in says and mend


# -- the way to a peer -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listens, level, told",
    [
        (True, "ok", "takes connections"),
        (False, "fail", "connection refused. Mend: start torchrun there first"),
    ],
)
def test_the_way_to_a_peer_is_told_step_by_step(capsys, listens, level, told):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if listens:
            held.listen()
        peer = f"localhost:{held.getsockname()[1]}"
        code = main(["doctor", "--peer", peer])
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [
        "ok   name     localhost is 127.0.0.1",
        f"ok   route    127.0.0.1 is this machine itself, by its loopback interface {LOOPBACK}",
    ]
    assert code == (level == "fail") and last.startswith(f"{level:<4} port     {peer}")
    assert told in last


@pytest.mark.parametrize(
    "chosen, level, words",
    [
        (
            None,
            "ok",
            (
                "eth1 with address 10.0.0.7 reaches 10.0.0.9; to insist on it: export"
                " GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME=eth1"
            ),
        ),
        ("eth1", "ok", "to insist on it"),
        (
            "eth0",
            "warn",
            "but GLOO_SOCKET_IFNAME is eth0. Mend: export GLOO_SOCKET_IFNAME=eth1 on this node.",
        ),
    ],
)
def test_the_interface_that_reaches_a_peer(capsys, monkeypatch, chosen, level, words):
    monkeypatch.setattr(peers, "own_address", lambda address: "10.0.0.7")
    monkeypatch.setattr(peers, "interface_of", lambda address: "eth1")
    monkeypatch.setattr(peers, "connect", lambda *_: None)
    monkeypatch.setattr("bigtrain_lab.runtime.process.border.interface", lambda: chosen)
    assert main(["doctor", "--peer", "10.0.0.9:29400"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[0] == level and words in lines[1]
