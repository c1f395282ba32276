"""A run is the same wherever its ranks are: a panel's, the shell's, torchrun's on one agent and on
two, on two machines.

Two machines are two network namespaces, with monotonic clocks that are 1000 s apart, where this
process may make them; elsewhere that test is not collected. All ports are ephemeral, on loopback or
inside the namespaces.
"""

import json
import os
import re
import shutil
import subprocess
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import yaml

import bigtrain_lab
from bigtrain_lab import Panel, Run
from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.cli import main
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.view import report
from tests.unit.jobs import environment, free_port, ranks_by_hand, script
from tests.unit.ranks import warm_up

ROOT = Path(bigtrain_lab.__file__).parents[1]
pytestmark = pytest.mark.slow
# Small, with dropout, in times whose links matter; ranks and settings differ from the defaults.
LAB = PipelineExperiment(
    ranks=4,
    micro_batches=4,
    steps=2,
    layers=4,
    width=32,
    sequence=16,
    hardware="a100-nvlink",
    dropout=0.1,
)


def ended(*processes) -> list[tuple[int, str]]:
    """(exit code, what was printed) of each process; none is left, whatever happens. No exit code
    is asked for before all have ended, as torchrun asks a moment later than a process ends: others
    may see it meanwhile."""
    try:
        printed = [process.stdout.read() for process in processes]
        return [
            (process.wait(), output) for process, output in zip(processes, printed, strict=True)
        ]
    finally:
        for process in processes:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
                process.wait()


def typed(line: str, directory, where, *prefix, **more) -> subprocess.Popen:
    """A command line as somebody types it in a shell, its run kept in that directory."""
    return subprocess.Popen(
        [*prefix, "bash", "-c", f"{line} --directory {directory}"],
        cwd=where,
        env=environment(**more),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def assert_same(run: Run, other: Run) -> None:
    assert run.state == other.state == "done"
    assert run.trace("modelled").events == other.trace("modelled").events  # the losses too
    for ours, theirs in zip(run.results, other.results, strict=True):
        assert set(ours) == set(theirs) and all(
            ours[name].tobytes() == theirs[name].tobytes() for name in ours
        )


def panels_run(directory, lab=LAB) -> Run:
    panel = Panel(lab)
    panel.start(directory=directory).wait()
    return panel.run


def test_the_panel_the_shell_and_torchrun_on_one_and_two_agents_run_the_same(
    tmp_path, capsys, monkeypatch
):
    """On two ranks; on four, and on two machines, below."""
    warm_up()
    lab = LAB.replace(ranks=2)
    first = panels_run(tmp_path / "panel", lab)
    assert clocks_differ(lab.predict(), first.trace()) == []
    lines, head = report.commands(lab), f"127.0.0.1:{free_port()}"
    monkeypatch.chdir(tmp_path)
    assert main([*lines["shell"].split()[1:], "--directory", "shell"]) == 0
    assert "as planned" in capsys.readouterr().out
    [(code, output)] = ended(typed(lines["torchrun, one node"], "one", tmp_path))
    assert code == 0 and output.count("The run is kept in") == 1
    two = lines["torchrun, two nodes"].replace("$HEAD_NODE:29400", head)
    done = ended(*(typed(two, "two", tmp_path, OMP_NUM_THREADS="3") for _ in range(2)))
    assert [code for code, _ in done] == [0, 0]
    assert sum(output.count("The run is kept in") for _, output in done) == 1
    for name in ("shell", "one", "two"):
        run = Run.open(tmp_path / name)
        assert_same(first, run)
        assert run.settings["threads"] == 1


# -- two machines ----------------------------------------------------------------------------------

APART_S = 1000
LATER = ["unshare", "--time", "--monotonic", str(APART_S), "--fork", "--kill-child"]


def may_make_namespaces() -> bool:
    if not (shutil.which("ip") and shutil.which("unshare")) or os.geteuid():
        return False
    name = f"bt{os.getpid()}"
    made = [
        subprocess.run(words, capture_output=True).returncode == 0
        for words in (
            ["ip", "netns", "add", name],
            ["ip", "netns", "exec", name, *LATER, "true"],
            ["ip", "netns", "del", name],
        )
    ]
    return all(made)


@pytest.fixture
def machines():
    """Words that run a command on either of two machines, which reach each other as 10.77.0.1 and
    10.77.0.2."""
    names = [f"bt{os.getpid()}{letter}" for letter in "ab"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run(
            [
                "ip",
                "link",
                "add",
                "va",
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                "vb",
                "netns",
                names[1],
            ],
            check=True,
        )
        for number, (name, link) in enumerate(zip(names, ("va", "vb")), start=1):
            for words in (
                ["addr", "add", f"10.77.0.{number}/24", "dev", link],
                ["link", "set", link, "up"],
                ["link", "set", "lo", "up"],
            ):
                subprocess.run(["ip", "-n", name, *words], check=True)
        yield [["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1], *LATER]]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


if may_make_namespaces():

    def test_two_machines_run_the_same_and_know_their_clocks(machines, tmp_path):
        warm_up()
        rest = report.commands(LAB)["torchrun, two nodes"].partition("-m ")[2]
        nodes = [
            "torchrun --nnodes=2 --nproc-per-node=2 --master-addr=10.77.0.1 --master-port=29400"
            f" --node-rank={i} -m {rest}"
            for i in (0, 1)
        ]
        (code, output), (other_code, _) = ended(
            *(typed(line, "run", tmp_path, *on) for line, on in zip(nodes, machines))
        )
        assert code == other_code == 0, output
        told = re.search(
            r"Clocks of 2 machines were compared at the start: that of rank 2 .* is known to \S+ .?s\.",
            " ".join(output.split()),
        )
        assert told, output
        run = Run.open(tmp_path / "run")
        assert_same(panels_run(tmp_path / "here"), run)
        here, there = run.settings["hosts"]
        assert (here["ranks"], there["ranks"], here["offset_ns"]) == ([0, 1], [2, 3], 0)
        assert abs(there["offset_ns"] - APART_S * 10**9) <= 1e9 * there["error_s"]
        crossing = [
            t for t in run.trace("measured").transfers() if {t.src // 2, t.rank // 2} == {0, 1}
        ]
        assert crossing and all(t.start <= t.end for t in crossing)
        assert run.trace("measured").makespan < APART_S


# -- what rank 0 says holds for all ----------------------------------------------------------------


def keep_profile(cache: Path, speed: float) -> None:
    from bigtrain_lab.runtime import calibrate

    found = {
        **calibrate.key(),
        "when": "2026-01-01T00:00+00:00",
        "memory_bytes": 2**34,
        "memory_bytes_per_s": 1e10,
        "launch_s": 2e-6,
        "alpha_s": 2e-5,
        "bytes_per_s": 3e9,
        "flops_per_s": {"float32": speed, "float64": speed},
    }
    (cache / "bigtrain_lab").mkdir(parents=True)
    (cache / "bigtrain_lab" / "this-machine.json").write_text(json.dumps(found))


def test_the_cost_is_rank_0_s_whatever_another_machine_has_measured_of_itself(
    tmp_path, monkeypatch
):
    """Rank 1's machine has kept another profile, rank 2's none."""
    keep_profile(tmp_path / "cache0", 5e10)
    keep_profile(tmp_path / "cache1", 1e9)
    lab = PipelineExperiment(
        ranks=3, micro_batches=3, steps=1, layers=3, width=16, sequence=8, hardware="this-machine"
    )
    words = ["-m", "bigtrain_lab", *report.command(lab).split()[1:], "--directory", "run"]
    done = ranks_by_hand(
        tmp_path, words, 3, lambda rank: {"XDG_CACHE_HOME": str(tmp_path / f"cache{rank}")}
    )
    assert [code for code, _ in done] == [0, 0, 0], done
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache0"))
    assert clocks_differ(lab.predict(), Run.open(tmp_path / "run").trace()) == []


REFUSING = """
    import os, sys
    import torch.distributed as dist
    from bigtrain_lab.core import Impossible
    from bigtrain_lab.runtime import launch
    from bigtrain_lab.runtime.torchrun import attach
    rank, attach.SEEN_S, attach.CONNECT_S = int(os.environ["RANK"]), 0.1, 5.0

    def begin(*_, **__):
        {begin}

    if rank == 1:
        {instead}
    try:
        launch(lambda rank: None, 2, steps={steps}, directory="run")
    except Impossible as error:
        sys.exit(f"refused: {{error}}")
"""
HINDERED = "dist.init_process_group = begin"
REFUSED = {
    "asked for different things": (
        {"steps": "3 + rank"},
        "Rank 1 was started with steps 4 and rank 0 with 3: give every node the same command",
    ),
    "a disk of its own": (
        {"instead": "attach.Path.is_file = lambda path: False"},
        "Rank 1 on .* does not see the run directory",
    ),
    "cannot connect": (
        {"begin": "raise RuntimeError('no such interface')", "instead": HINDERED},
        r"Rank 1 on .* cannot connect to the other ranks over .* \(no such interface\)",
    ),
}


@pytest.mark.parametrize("changes, told", REFUSED.values(), ids=REFUSED)
def test_a_rank_that_cannot_take_part_is_told_by_the_other(changes, told, tmp_path):
    text = REFUSING.format(**{"begin": "pass", "instead": "pass", "steps": "3", **changes})
    (code, output), _ = ranks_by_hand(tmp_path, script(tmp_path, text), 2)
    assert code == 1 and re.search(f"^refused: .*{told}", output, flags=re.M), output
    assert not (tmp_path / "run").exists()


def test_a_rank_that_dies_before_it_connects_is_told_by_torchrun_and_ends_all(tmp_path):
    text = REFUSING.format(begin="os.kill(os.getpid(), 9)", instead=HINDERED, steps="3")
    (name,) = script(tmp_path, text)
    [(code, output)] = ended(
        typed(f"torchrun --standalone --nproc-per-node=2 {name}", "unused", tmp_path)
    )
    assert code and re.search(r"rank +: 1 .*\n *exitcode +: -9 ", output), output
    assert at_work_in(tmp_path) == []


# -- failures --------------------------------------------------------------------------------------

FAILING = """
    import os, sys, time
    from bigtrain_lab.runtime import RankFailed, launch

    def program(rank):
        group = rank.group()
        group.barrier()
        with rank.span("work"):
            pass
        {fault}

    try:
        launch(program, int(os.environ["WORLD_SIZE"]), directory="run", stall_s=5)
    except RankFailed as error:
        sys.exit(f"told: {{error}}")
"""
FAULTS = {
    # the rank that fails, what it does (and what the others do), how the diagnosis begins
    "a victim waits, another rank has finished": (
        """
        if rank.index == 2: raise ValueError("the loss is bad")
        if rank.index == 1: group.recv(2, name="x")""",
        "Rank 2 failed: ValueError: the loss is bad",
    ),
    "killed": (
        """
        if rank.index == 1: os.kill(os.getpid(), 9)
        group.barrier()""",
        "Rank 1 ended before its program returned (killed, or os._exit?); rank 1 had done work.",
    ),
    "rank 0 killed, and with it the store": (
        """
        if rank.index == 0: os.kill(os.getpid(), 9)
        group.barrier()""",
        "Rank 0 ended before its program returned (killed, or os._exit?); rank 0 had done work.",
    ),
    "left": (
        """
        if rank.index == 2: os._exit(0)
        group.barrier()""",
        "Rank 2 ended before its program returned (killed, or os._exit?); rank 2 had done work.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_under_torchrun_a_failure_is_told_once_and_ends_all(tmp_path, fault):
    doing, words = FAULTS[fault]
    done = ranks_by_hand(
        tmp_path,
        script(
            tmp_path,
            textwrap.dedent(FAILING).format(fault=textwrap.indent(textwrap.dedent(doing), "    ")),
        ),
        3,
    )
    run = Run.open(tmp_path / "run")
    assert run.state == "failed" and run.diagnosis.startswith(words)
    assert [each.rank for each in run.waits] == [0, 1, 2] and any(each.line for each in run.waits)
    silent = {"killed": 1, "rank 0 killed, and with it the store": 0, "left": 2}.get(fault)
    whole = []
    for rank, (code, output) in enumerate(done):
        if rank == silent:
            continue
        said = re.split("^(?:told|bigtrain): ", output, flags=re.M)
        assert (
            code == 1 and len(said) == 2 and said[1].startswith(words) and "Traceback" not in output
        ), output
        whole.append(f"What the ranks wrote is kept in {tmp_path / 'run'}." in said[1])
    assert whole.count(True) == 1  # one rank tells all of it


def test_under_two_agents_of_torchrun_a_failure_ends_both(tmp_path):
    """The last rank fails, on the other agent than rank 0, which waits for it."""
    (name,) = script(
        tmp_path,
        textwrap.dedent(FAILING).format(
            fault=textwrap.indent(
                textwrap.dedent("""
        if rank.index == 1: raise ValueError("the loss is bad")
        group.recv(1, name="x")"""),
                "    ",
            )
        ),
    )
    line = (
        "torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d"
        f" --rdzv-endpoint=127.0.0.1:{free_port()} {name}"
    )
    done = ended(*(typed(line, "unused", tmp_path) for _ in range(2)))
    assert all(code for code, _ in done)
    said = re.findall("^told: .*", "\n".join(output for _, output in done), flags=re.M)
    assert 1 <= len(said) <= 2 and set(said) == {"told: Rank 1 failed: ValueError: the loss is bad"}
    assert Run.open(tmp_path / "run").diagnosis.startswith(
        "Rank 1 failed: ValueError: the loss is bad"
    )
    assert at_work_in(tmp_path) == []


def at_work_in(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(folder)]


def test_a_torchrun_that_is_killed_leaves_no_rank_on_either_machine(tmp_path):
    """Nobody ends its ranks then but their lookouts. The other agent ends by itself."""
    (name,) = script(
        tmp_path,
        textwrap.dedent(FAILING)
        .format(fault="    time.sleep(1000) if rank.index else group.recv(1)")
        .replace("stall_s=5", "stall_s=1000"),
    )
    line = (
        "exec torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d"
        f" --rdzv-endpoint=127.0.0.1:{free_port()} {name}"
    )
    agents = [typed(line, "unused", tmp_path) for _ in range(2)]
    logs = [tmp_path / "run" / f"events-{rank}.jsonl" for rank in range(2)]
    while not all(log.exists() and '"work"' in log.read_text() for log in logs):
        assert all(agent.poll() is None for agent in agents)
        time.sleep(0.05)
    agents[1].kill()
    ended(*agents)
    gone, alive = psutil.wait_procs(at_work_in(tmp_path), timeout=300)
    assert alive == [] and Run.open(tmp_path / "run").state in ("stopped", "failed")


# -- the scripts of docs/clusters.md ---------------------------------------------------------------

SHOWN = report.commands(PipelineExperiment(ranks=8, micro_batches=16))["torchrun, two nodes"]


def test_the_slurm_script_is_bash_and_starts_what_the_panel_copies():
    path = ROOT / "examples" / "slurm.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.read_text().splitlines().count(SHOWN) == 1
    assert SHOWN in (ROOT / "docs" / "clusters.md").read_text()


def test_the_kubernetes_job_is_whole_and_starts_what_the_panel_copies():
    service, job = yaml.safe_load_all((ROOT / "examples" / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    (text,) = container["args"]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert text.splitlines()[-1] == SHOWN
