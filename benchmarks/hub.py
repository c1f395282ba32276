"""A class on a real JupyterHub: USERS students, AT_ONCE of them at the same time, and what each
costs (BIGTRAIN_USERS=60 BIGTRAIN_AT_ONCE=10 python -m benchmarks hub for fewer).

It needs the commands `jupyterhub` and `configurable-http-proxy` on the PATH: docs/administrators.md
says how they are installed. The hub runs here with the configuration of that page, on 127.0.0.1.

Each student's server is started by the hub. She opens her copy of lesson 00, shows a panel, moves a
control as a browser does, presses Run (two real ranks), has an exercise checked, saves the notebook
and stops her server. Each has settings of her own, so that a mix-up is found. At the end the saved
notebooks and run directories are read again from the disk: nothing may be lost.

One student asks a rank for more memory than the limit of her processes, while others work: she must
read a sentence, and her kernel and the work of all must live.

Memory is what Linux calls PSS: a page that several processes share is divided among them. CPU
seconds are of the server, the kernel, and all processes that they started.
"""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import requests
import websocket

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.grading import Topic
from bigtrain_lab.lesson import copies
from bigtrain_lab.runtime import Run

from .measure import row

USERS = int(os.environ.get("BIGTRAIN_USERS", 300))
AT_ONCE = min(USERS, int(os.environ.get("BIGTRAIN_AT_ONCE", 30)))
LIMIT_GB = 3  # of data a process may hold: docs/administrators.md
PATIENCE_S, ANSWERS_S, MOST_ANEW = 1800, 80, 5
SMALLEST = {"USERS": 2, "AT_ONCE": 2}
LESSON = "00_start_here.ipynb"
TOPIC = "1f1b"
TROUBLE = re.compile(r"restart|died|in use|Errno|[Ff]ailed")  # lines of the hub's log
CONFIGURATION = Path(__file__).parents[1] / "docs" / "jupyterhub_config.py"

IMPORT = "import json, bigtrain_lab\nfrom bigtrain_lab.panel import show"
PANEL = """
panel = show("pipeline", ranks=2)
print(json.dumps(panel.controls["micro_batches"].model_id))
"""
MOVED = "print(json.dumps(panel.experiment.micro_batches))"
RUN = """
trace = panel.wait() if panel.start() else None
print(json.dumps(str(panel.run.directory)))
"""
CHECK = """
from bigtrain_lab.grading import check
verdict = check({topic!r}, answer)
print(json.dumps(bool(verdict)))
"""
GREEDY = """
import torch
from bigtrain_lab import launch
def program(rank):
    return {{"filled": torch.ones(int({gb} * 1e9) // 4) if rank.index else torch.ones(1)}}
try:
    launch(program, ranks=2).wait()
    told = ""
except Exception as error:
    told = str(error)
print(json.dumps(told))
"""


class Hub:
    """A running hub in a folder of its own; each user has a home below it."""

    def __init__(self, folder: Path):
        self.folder, self.token = folder, secrets.token_hex(16)
        (self.port, api, proxy) = free_ports(3)
        (folder / "home").mkdir()
        (folder / "jupyterhub_config.py").write_text(
            CONFIGURATION.read_text(encoding="utf-8")
            + f"\nc.JupyterHub.bind_url = 'http://127.0.0.1:{self.port}'"
            + f"\nc.JupyterHub.hub_port = {api}"
            + f"\nc.ConfigurableHTTPProxy.api_url = 'http://127.0.0.1:{proxy}'"
            + f"\nc.JupyterHub.active_server_limit = {AT_ONCE}"
            + f"\nc.JupyterHub.concurrent_spawn_limit = {AT_ONCE}"
            + "\nc.JupyterHub.authenticator_class = 'dummy'"
            + "\nc.JupyterHub.spawner_class = Limited"
            + f"\nc.Limited.home_dir_template = {str(folder / 'home')!r} + '/{{username}}'"
            + "\nc.Spawner.args += ['--allow-root']\nc.Authenticator.allow_all = True"
            + f"\nc.JupyterHub.services = [{{'name': 'class', 'api_token': {self.token!r}}}]"
            + "\nc.JupyterHub.load_roles = [{'name': 'class', 'services': ['class'], 'scopes':"
            + " ['admin:users', 'admin:servers', 'access:servers']}]\n"
        )
        with (folder / "hub.log").open("w") as log:
            self.process = subprocess.Popen(
                ["jupyterhub", "-f", "jupyterhub_config.py"],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            )
        waited(lambda: self.ask("GET", "/hub/api/").ok, 120)

    def ask(self, verb: str, path: str, **body) -> requests.Response:
        return requests.request(
            verb,
            f"http://127.0.0.1:{self.port}{path}",
            headers={"Authorization": f"token {self.token}"},
            timeout=PATIENCE_S,
            **body,
        )

    def asked(self, verb: str, path: str, **body) -> dict:
        reply = self.ask(verb, path, **body)
        reply.raise_for_status()
        return reply.json() if reply.content else {}

    def server(self, user: str) -> psutil.Process:
        """The process of a user's server."""
        home = str(self.folder / "home" / user)
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if each.cwd() == home and "singleuser" in " ".join(each.cmdline()):
                    return each
        raise LookupError(f"{user} has no server")

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


class Kernel:
    """A notebook's kernel, through the hub's proxy and the user's server."""

    def __init__(self, hub: Hub, user: str):
        made = hub.asked(
            "POST",
            f"/user/{user}/api/sessions",
            json={
                "path": LESSON,
                "name": LESSON,
                "type": "notebook",
                "kernel": {"name": "python3"},
            },
        )
        self.id, self.session = made["kernel"]["id"], uuid.uuid4().hex
        self.at = f"ws://127.0.0.1:{hub.port}/user/{user}/api/kernels/{self.id}/channels"
        self.token, self.dropped, self.anew = hub.token, 0, -1
        self.begin()

    def begin(self) -> None:
        """Connect, to the ports that the kernel has now, until it answers: as who loads the page
        again where a kernel died before it was connected."""
        self.anew += 1
        if self.anew > MOST_ANEW:
            raise TimeoutError("her kernel does not answer")
        self.connect()
        asked, until = self.send("kernel_info_request"), time.monotonic() + ANSWERS_S
        self.wire.settimeout(ANSWERS_S / 4)  # a server pings each 30 s, which counts as heard
        while time.monotonic() < until:
            with suppress(websocket.WebSocketTimeoutException):
                got = self.wire.recv()
                if isinstance(got, str) and json.loads(got)["parent_header"].get("msg_id") == asked:
                    self.wire.settimeout(PATIENCE_S)
                    return
        self.wire.close()
        self.session = uuid.uuid4().hex
        self.begin()

    def connect(self) -> None:
        """Connect; once more, as a browser does, where a connection is lost: the server keeps for
        its session what the kernel says meanwhile."""
        self.wire = websocket.create_connection(
            f"{self.at}?session_id={self.session}",
            header=[f"Authorization: token {self.token}"],
            timeout=PATIENCE_S,
        )

    def heard(self) -> str | bytes:
        while True:
            try:
                return self.wire.recv()
            except websocket.WebSocketConnectionClosedException:
                self.dropped += 1
                self.connect()

    def send(self, kind: str, **content) -> str:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self.session,
            "username": "",
            "version": "5.3",
            "date": "",
        }
        whole = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.wire.send(json.dumps(whole | {"channel": "shell", "buffers": []}))
        return header["msg_id"]

    def run(self, code: str) -> tuple:
        """Run a cell; again, as a student would, where its kernel died and was started anew.
        Returns the last line it printed, read as JSON, and its outputs."""
        asking = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
        }
        mine, text, replied, idle = self.send("execute_request", **asking), "", False, False
        while not (replied and idle):
            got = self.heard()
            if isinstance(got, bytes):  # with buffers: of widgets
                continue
            said = json.loads(got)
            kind, content = said["header"]["msg_type"], said["content"]
            if kind == "status" and content["execution_state"] == "restarting":
                self.wire.close()
                self.begin()
                mine, text = self.send("execute_request", **asking), ""
            if said["parent_header"].get("msg_id") != mine:
                continue
            if kind == "stream" and content["name"] == "stdout":
                text += content["text"]
            if kind == "execute_reply":
                replied = True
                if content["status"] != "ok":
                    raise RuntimeError("\n".join(content["traceback"])[-1500:])
            idle = idle or (kind == "status" and content["execution_state"] == "idle")
        lines = text.strip().splitlines()
        return (json.loads(lines[-1]) if lines else None), text


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def waited(ready, seconds: float = PATIENCE_S) -> None:
    until = time.monotonic() + seconds
    while True:
        with suppress(requests.RequestException):
            if ready():
                return
        if time.monotonic() > until:
            raise TimeoutError("the hub or a server did not come")
        time.sleep(0.3)


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def held_mb(processes: list[psutil.Process]) -> float:
    total = 0.0
    for each in processes:
        with suppress(psutil.Error):
            total += each.memory_full_info().pss / 1e6
    return total


def cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for each in processes:
        with suppress(psutil.Error):
            total += sum(each.cpu_times()[:4])  # its own and its ended children's
    return total


def wanted(number: int) -> int:
    """The micro-batches that this student moves the control to."""
    return 9 + number % 10


class Student:
    """One student from start to stop; `costs`: step -> seconds, CPU seconds, MB."""

    def __init__(self, hub: Hub, number: int, greedy: bool = False):
        self.hub, self.number, self.greedy = hub, number, greedy
        self.name, self.costs, self.lost = f"student{number:03}", {}, ""
        self.home = hub.folder / "home" / self.name
        self.told = {}

    def step(self, what: str, act):
        """Do a step and note what it costs. The most memory is sampled while it lasts."""
        samples, over = [], threading.Event()

        def sample():
            while not over.wait(0.5 if self.number == 0 else 5):
                with suppress(psutil.Error):
                    samples.append(held_mb(tree(self.server)))

        before = cpu_s(tree(self.server)) if self.costs else 0
        began = time.perf_counter()
        looking = threading.Thread(target=sample)
        if self.costs:
            looking.start()
        try:
            found = act()
        finally:
            over.set()
        took = time.perf_counter() - began
        if self.costs:
            looking.join()
        else:
            self.server = self.hub.server(self.name)
        samples.append(held_mb(tree(self.server)))
        used = cpu_s(tree(self.server)) - before
        self.costs[what] = {"s": took, "cpu_s": used, "mb": max(samples), "after": samples[-1]}
        return found

    def begin(self):
        self.home.mkdir()
        self.hub.asked("POST", f"/hub/api/users/{self.name}")
        # she tries again where the hub has all the servers that it may (429)
        waited(lambda: self.hub.ask("POST", f"/hub/api/users/{self.name}/server").ok)

        def ready() -> bool:
            told = self.hub.asked("GET", f"/hub/api/users/{self.name}")
            return told["servers"].get("", {}).get("ready", False)

        waited(ready)

    def open(self):
        shutil.copy(self.hub.folder / "lessons" / LESSON, self.home)
        self.book = self.hub.asked("GET", f"/user/{self.name}/api/contents/{LESSON}")["content"]
        self.kernel = Kernel(self.hub, self.name)

    def move(self):
        """Move a control by the message that a browser sends."""
        state = {"method": "update", "state": {"value": wanted(self.number)}, "buffer_paths": []}
        self.kernel.send("comm_msg", comm_id=self.told["control"], data=state)
        waited(lambda: self.kernel.run(MOVED)[0] == wanted(self.number))

    def save(self):
        note = f"# {self.name}\nverdict = {self.told['right']}\n{self.answer}"
        cell = {
            "cell_type": "code",
            "id": self.name,
            "metadata": {},
            "source": note,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": self.told["output"]}],
            "execution_count": 1,
        }
        self.book["cells"].append(cell)
        self.hub.asked(
            "PUT",
            f"/user/{self.name}/api/contents/{LESSON}",
            json={"type": "notebook", "format": "json", "content": self.book},
        )

    def end(self):
        self.kernel.wire.close()
        self.hub.asked("DELETE", f"/hub/api/users/{self.name}/server")
        waited(lambda: not self.hub.asked("GET", f"/hub/api/users/{self.name}").get("server"))

    def work(self) -> "Student":
        self.answer = next(iter(Topic.named(TOPIC).right.values()))
        try:
            self.step("server", self.begin)
            self.step("kernel", self.open)
            self.step("import", lambda: self.kernel.run(IMPORT))
            self.told["control"], _ = self.step("panel", lambda: self.kernel.run(PANEL))
            self.step("slider", self.move)
            self.told["directory"], _ = self.step("run", lambda: self.kernel.run(RUN))
            if self.greedy:
                self.told["sentence"], _ = self.kernel.run(GREEDY.format(gb=4 * LIMIT_GB))
            self.kernel.run(self.answer)
            self.told["right"], self.told["output"] = self.step(
                "check", lambda: self.kernel.run(CHECK.format(topic=TOPIC))
            )
            self.step("save", self.save)
            self.end()
        except Exception as error:
            self.lost = f"{self.name}: {type(error).__name__}: {str(error)[:200]}"
            with suppress(Exception):
                self.end()
        return self

    def missing(self) -> str:
        """What of her work is not on the disk as it should be; "" where all is."""
        if self.lost:
            return self.lost
        book = json.loads((self.home / LESSON).read_text(encoding="utf-8"))
        if "".join(book["cells"][-1]["source"]) != f"# {self.name}\nverdict = True\n{self.answer}":
            return f"{self.name}'s notebook is not what she saved"
        run = Run.open(self.home / self.told["directory"])
        asked = Experiment.named("pipeline")(ranks=2, micro_batches=wanted(self.number))
        return "; ".join(clocks_differ(asked.predict(), run.traces()["modelled"]))


def rows() -> list[dict]:
    for command in ("jupyterhub", "configurable-http-proxy"):
        if not shutil.which(command):
            sys.exit(f"There is no {command}: docs/administrators.md says how to install it.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copies(folder / "lessons")
        hub = Hub(folder)
        try:
            return found(hub)
        except Exception:
            print((folder / "hub.log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            hub.close()


def found(hub: Hub) -> list[dict]:
    alone = Student(hub, 0).work()
    if alone.missing():
        raise RuntimeError(alone.missing())
    most, began, greedy = [0.0], time.perf_counter(), 1 + USERS // 2
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [
            pool.submit(Student(hub, number, number == greedy).work)
            for number in range(1, USERS + 1)
        ]
        while not all(each.done() for each in waiting):
            most.append(held_mb(tree(psutil.Process(hub.process.pid))) / 1e3)
            time.sleep(2)
    took = time.perf_counter() - began
    every = [each.result() for each in waiting]
    lost = [each.missing() for each in every if each.missing()]
    said = (hub.folder / "hub.log").read_text().splitlines() if lost else []
    for line in (*lost, *[each for each in said if TROUBLE.search(each)][-60:]):
        print(line, file=sys.stderr)
    (sentence,) = [each.told.get("sentence", "") for each in every if each.greedy]
    print("Beyond the limit:", sentence.partition("\n")[0], file=sys.stderr)
    return [
        row(f"{USERS} users, {AT_ONCE} at once: minutes in all", took / 60, "min"),
        row("users of whose work anything is lost", len(lost), "users", at_most=0),
        row(
            "users whose rank got no memory and who read why",
            int("memory" in sentence),
            "users",
            at_least=1,
        ),
        row(
            "connections to kernels that were lost and made again",
            sum(each.kernel.dropped for each in every if not each.lost),
            "connections",
        ),
        row(
            "kernels that died and were started anew",
            sum(each.kernel.anew for each in every if not each.lost),
            "kernels",
        ),
        row(
            "most memory of the hub and all that it started",
            max(most),
            "GB",
        ),
        *costs(alone, [each for each in every if not each.lost]),
    ]


def costs(alone: Student, every: list[Student]) -> list[dict]:
    """What each step costs one user who is alone, and how long it takes in the class."""
    table = []
    for what, told in {
        "server": "her server",
        "kernel": "a kernel",
        "import": "import bigtrain_lab",
        "panel": "a panel",
        "slider": "a control moved",
        "run": "a run: 2 ranks, 2 updates",
        "check": "a check",
        "save": "saved",
    }.items():
        one = alone.costs[what]
        times = sorted(each.costs[what]["s"] for each in every)
        table += [
            row(f"{told}: memory of the user then", one["after"], "MB"),
            row(f"{told}: most memory while it lasts", one["mb"], "MB"),
            row(f"{told}: CPU", one["cpu_s"], "s"),
            row(f"{told}: one user alone", one["s"], "s"),
            row(f"{told}: in the class, median", statistics.median(times), "s"),
            row(f"{told}: in the class, 95th percentile", times[int(0.95 * len(times))], "s"),
        ]
    whole = sum(one["cpu_s"] for one in alone.costs.values())
    return [*table, row("all of it: CPU of a user", whole, "s")]
