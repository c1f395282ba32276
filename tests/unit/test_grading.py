"""Grading by likeness: each gallery holds, an answer's process holds no truth, and nothing that an
answer does harms the one who asks."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import venv
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bigtrain_lab import Impossible, Topic
from bigtrain_lab.cli.site.python import UNUSABLE
from bigtrain_lab.course import build
from bigtrain_lab.grading import (
    box,
    check,
    folder as folders,
    hint,
    inside,
    known,
    likeness,
    marks,
    playing,
    topics,
)
from bigtrain_lab.grading.folder import read
from bigtrain_lab.grading.in_page import EXERCISES
from bigtrain_lab.grading.proof import faults
from bigtrain_lab.grading.text import Piece, sliced, text_of
from bigtrain_lab.grading.trainings import Refused
from bigtrain_lab.models import peak_bytes
from bigtrain_lab.order.schedules.one_f_one_b import OneFOneB
from bigtrain_lab.techniques.all_reduce import naive_ring_all_reduce
from bigtrain_lab.techniques.lamb import NaiveLAMB
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler
from tests.rights import SEED

# A class that an answer defines joins the schedules, as a student's does.
pytestmark = pytest.mark.usefixtures("family", "kept_rights")
TOPICS = dict(Topic.all())
Double = folders.topic(Path(__file__).parent / "double")


@pytest.mark.parametrize("name", TOPICS)
def test_a_gallery_holds(name):
    """On one seed; `make grading-proof` plays twenty, and mutants."""
    assert list(faults(TOPICS[name], SEED)) == []


@pytest.mark.parametrize("name", TOPICS)
def test_a_right_answer_passes_in_a_process_of_its_own(name):
    """As a lesson's or an assignment's cell has it."""
    topic, called = TOPICS[name], TOPICS[name].called()
    cells = ["import torch", build.renamed(next(iter(topic.right.values())), called)]
    assert topic.judged(sliced(cells, called), SEED).findings == []


@pytest.mark.parametrize("name", TOPICS)
def test_no_step_is_right_as_handed_out(name):
    topic = TOPICS[name]
    rows = topic.reference_rows(SEED)[likeness.START]
    judged = likeness.Judged(topic, SEED, None, None, rows, topic.rights(SEED))
    for number, _ in enumerate(topic.steps, 1):
        assert judged.within(topic.scenes_of(number, SEED)).different is not None


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_has_right_answers_that_differ_three_hints_and_a_step_for_each_scene(name):
    topic = TOPICS[name]
    assert len({*topic.right.values()}) >= 2 and topic.wrong and len(topic.hints) == 3
    for seed in range(3):
        names = [scene for scene, *_ in topic.drawn_scenes(seed)]
        steps = [topic.scenes_of(n, seed) for n in range(1, len(topic.steps) + 1)]
        assert all(steps) and sorted(names) == sorted(name for each in steps for name in each)


FOLDERS = [asked.parent for asked in Path(topics.__file__).parent.glob("*/exercise.md")]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("# M\n\n## lost\nNot said how.\n", "'lost' is no sentence"),
        ("# M\n\n## lost\nSo.\n```diff\n-not there\n+here\n```\n", "'lost': .* 0 times"),
        (
            "# M\n" + "".join(f"\n## m{n}\nSo.\n```python\nanswer = {n}\n```\n" for n in range(15)),
            "15 mistakes: .* 14",
        ),
    ],
    ids=["no change", "no such line", "too many"],
)
def test_mistakes_that_cannot_be_read_are_refused(wrong, sentence):
    with pytest.raises(Impossible, match=sentence):
        folders.mistakes(wrong, right="answer = 1\n")


@pytest.mark.parametrize("part", folders.PARTS)
def test_a_folder_that_lacks_a_part_is_refused(part, tmp_path):
    whole = tmp_path / "mine"
    shutil.copytree(FOLDERS[0], whole)
    (whole / part).rename(tmp_path / part)
    with pytest.raises(Impossible, match=f"mine lacks .*{part}"):
        folders.topic(whole)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_is_asked_for_as_in_its_lesson(folder):
    """Where a lesson checks it, the statement and the starter of exercise.md are cells of that
    lesson, but for blanks and the heading."""
    name = import_module(f"{topics.__name__}.{folder.name}.probe").NAME
    start, asked = TOPICS[name].start, TOPICS[name].asked.partition("\n")[2]
    for file in (folder.parents[3] / "notebooks").glob("*.ipynb"):
        told = {"code": [], "markdown": []}
        for cell in json.loads(read(file))["cells"]:
            told[cell["cell_type"]].append(squeezed("".join(cell["source"])))
        checked = any(f'check("{name}"' in cell for cell in told["code"])
        assert (squeezed(start) in told["code"]) == checked
        assert any(squeezed(asked) in cell for cell in told["markdown"]) == checked


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


# -- what an answer may do -------------------------------------------------------------------------


def told(body: str, seed=1) -> list[str]:
    """The findings on a function of this body."""
    text = "def answer(x):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return Double.judged([Piece(1, text)], seed).findings


def test_findings_are_a_known_mistake_s_sentence_or_both_values():
    assert told("return 2 * x") == [] == told("return x << 1")
    x = int(told("return 3 * x")[1].split("x = ")[1].split()[0])
    assert told("return 3 * x") == [
        "That is three times the number: double it.",
        f"Yours {3 * x}, right {2 * x}. Seen with small: x = {x} (seed 1).",
    ]
    assert told("return x * (2 + (x < 100))")[0].startswith("Small numbers")
    sentence, seen = told("return x * (2 + (x > 99))")
    assert sentence.startswith("Large numbers") and seen.startswith("Double: yours")
    assert told("return 2 * x + 1") == [
        f"Yours {2 * x + 1}, right {2 * x}. Seen with small: x = {x} (seed 1)."
    ]
    (unlike,) = told("return 2 * x if x != 1 else 5")
    assert unlike.startswith("Of a list, at place 0: yours 5, right 2. Seen with large: x = ")
    assert told("return [2 * x]")[0].startswith("Yours [") and told("return None")[0].startswith(
        "Yours nothing, right "
    )


def test_numbers_of_every_kind_mean_the_same():
    for kind in (
        "float(2 * x)",
        "torch.tensor(2 * x)",
        "numpy.int64(2 * x)",
        "fractions.Fraction(2 * x)",
    ):
        assert told(f"import torch, numpy, fractions\nreturn {kind}") == [], kind


ENDS = {
    "y = x\nreturn y / 0": "ZeroDivisionError: division by zero, at your line 3, `return y / 0`.",
    "import sys\nsys.exit(0)": "called sys.exit, at your line 3",
    "import ctypes\nctypes.string_at(0)": "by SIGSEGV",
    "import os\nos._exit(0)": "with exit code 0",
    "import torch\ntorch.ones(10**10)": "needs more than 4.3 GB, at your line 3",
    "x = 'a' * 10**10": "needs more than 4.3 GB, at your line 2",
    "import torch\ntorch.nn.Linear(2, 2)(3)": "at your line 3, `torch.nn.Linear",
    "raise type('', (BaseException,), {})('x')": "Your answer raised an error: x",
    "import torch\ntorch.equal = len\nreturn 2 * x": "torch.equal is another function",
    "import torch\ntorch.set_grad_enabled(False)\nreturn 2 * x": "Gradients are still switched off",
    "from bigtrain_lab.order import schedule\nschedule.Action.__str__ = len\nreturn 2 * x": (
        "Action.__str__ is another function"
    ),
    "x = (": "SyntaxError",
}


@pytest.mark.parametrize("body", ENDS)
def test_what_an_answer_does_is_told_with_its_line(body):
    assert ENDS[body] in told(body)[0]


def test_a_known_mistake_that_raises_is_told_with_the_error():
    known_one, error, _ = told("return 2 * y")
    assert known_one == "There is no y: use x." and "NameError" in error and "your line 2" in error
    judged = TOPICS["timing"].judged([Piece(1, "def answer(): return 1")], 1)
    assert "could not be called as the exercise does" in judged.findings[0]


def test_what_never_ends_is_told_and_ended(own_box):
    for loop, sentence in {
        "while True: pass": "within 1 s: it was at your line 2, `while True: pass`.",
        "import time\ntime.sleep(10**6)": "within 6 s: it was at your line 3, `time.sleep.*`.",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass": "within [16] s",
    }.items():
        found = told(loop)
        assert re.search(sentence, found[0]) and "x = " in found[1], loop


REACHES = {
    "the library": "from bigtrain_lab.techniques import accumulate",
    "its files": "open({package!r} + '/train/recipe.py')",
    "right answers": "open({right!r})",
    "a folder": "__import__('os').listdir({package!r})",
    "a link": "__import__('os').symlink({right!r}, 'link')",
    "a file of its own": "open('new', 'w').write('x')",
    "a fork": "__import__('os').fork()",
    "a program": "__import__('subprocess').run(['true'])",
    "C": "assert not __import__('ctypes').CDLL(None).system(b'true')",
    "another process": "__import__('os').kill(__import__('os').getppid(), 0)",
    "the network": "__import__('socket').socket()",
    "what is torch's own": "__import__('torch').amp.GradScaler()",
    "torch's own by its text": "open(__import__('torch').amp.grad_scaler.__file__)",
    "the exercise": "import bigtrain_lab.grading.topics.double.probe",
    "galleries in memory": (
        "assert any(' '.join(['three', 'times']) in str(o) for o in __import__('gc').get_objects() if type(o) is dict)"
    ),
}


@pytest.mark.parametrize("what", REACHES)
def test_what_an_answer_cannot_reach(what):
    reach = REACHES[what].format(
        package=str(box.PACKAGE), right=str(Double.folder / "right" / "1_times.py")
    )
    body = f"try:\n    {reach}\nexcept BaseException:\n    return 2 * x\nreturn 'reached'"
    assert told(body) == []


def test_what_the_fence_of_this_machine_keeps_is_told():
    assert box.fence() == {"files": True, "processes": True, "the network": True}


FORGED = {
    "rows of another form": "os.write(fd, b'[1, 2, 3]\\n' * 9)",
    "too much": "os.write(fd, b'\\xff' * 4000)",
    "an end of its own": "os.write(fd, message)",
}


@pytest.mark.parametrize("what", FORGED)
def test_what_an_answer_writes_into_its_wire_harms_nobody(what):
    body = f"""
import json, os, struct
text = json.dumps([["end", 0, 0, {{"came": [0]}}, []], []]).encode()
message = struct.pack("!QQ", len(text), 0) + text
for fd in range(3, 300):
    try:
        {FORGED[what]}
    except OSError:
        pass
return 2 * x"""
    assert told(body.strip()) != [] and told("return 2 * x") == []


def test_what_changes_before_it_is_received_arrives_as_another():
    sentence, text = TOPICS["ring-all-reduce"].wrong["buffer_reused"]
    assert TOPICS["ring-all-reduce"].judged([Piece(1, text)], SEED).findings[0] == sentence


def test_a_rank_has_its_own_inputs_alone():
    """The mean gradient of ZeRO-1 cannot be had without a message."""
    looks = """
import gc
def answer(params, optimizer_class, group, **rule):
    seeds = {each["seed"] for each in gc.get_objects() if type(each) is dict and "seed" in each
             and "shapes" in each}
    raise LookupError(f"{len(seeds)} seeds")
"""
    # of the first weights, and of its own targets
    assert "LookupError: 2 seeds" in TOPICS["zero-1"].judged([Piece(1, looks)], SEED).findings[0]


ELSEWHERE = """
import json, torch
from bigtrain_lab.grading import Topic, box
from bigtrain_lab.grading.text import Piece
print(torch.__file__)
for name in ("zero-1", "checkpoint", "peak-bytes"):
    pieces = [Piece(1, next(iter(Topic.named(name).right.values())))]
    print(json.dumps([name, *(row[:-1] for row in box.box().rows(Topic.named(name), pieces, 5))]))
"""


@pytest.mark.slow
def test_torch_may_lie_anywhere(tmp_path):
    """A Python of its own, to which a path file adds a folder by another name: right answers do
    there what they do here."""
    venv.create(tmp_path / "env")
    (tmp_path / "libraries").symlink_to(Path(torch.__file__).parents[1])
    purelib = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")})
    (Path(purelib) / "more.pth").write_text(str(tmp_path / "libraries"))
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", ELSEWHERE],
        env=os.environ | {"PYTHONPATH": str(box.PACKAGE.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    place, *played = done.stdout.splitlines()
    assert place.startswith(str(tmp_path / "libraries"))
    for name, *shown in map(json.loads, played):
        topic, rows = TOPICS[name], [box.Row(*row) for row in shown]
        assert likeness.Judged(topic, 5, None, None, rows, topic.rights(5)).different is None
    assert len(played) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_torch_s_functions_are_all_put_back(fails):
    """A method that stood before a base class's, too; and the next answer meets torch as it was."""
    left, own = inside.Left(), (torch.mm, torch.bmm, torch.Tensor.exp)

    def run():
        torch.mm = torch.bmm = torch.Tensor.exp = len
        return 1 / (not fails)

    with pytest.raises(ZeroDivisionError if fails else Refused):
        left.then(run)
    assert (torch.mm, torch.bmm, torch.Tensor.exp) == own and "exp" not in vars(torch.Tensor)


THERE = {
    "the library's scaler": ("loss-scaler", DynamicLossScaler, "takes"),
    "torch's scaler": ("loss-scaler", torch.amp.GradScaler, "takes"),
    "torch's scaler, made": ("loss-scaler", lambda **rule: torch.amp.GradScaler(**rule), "takes"),
    "the library's scaler, made": (
        "loss-scaler",
        lambda **rule: DynamicLossScaler(**rule),
        "takes",
    ),
    "torch's scaler, inherited": (
        "loss-scaler",
        "import torch\nclass answer(torch.amp.GradScaler): pass",
        "takes",
    ),
    "torch's scaler, of its module loaded again": (
        "loss-scaler",
        "import importlib, sys\nagain = importlib.reload(sys.modules['torch.amp.grad_scaler'])\nanswer ="
        " vars(again)['Grad' + 'Scaler']",
        "takes torch.amp.grad_scaler",
    ),
    "a switch of torch's": (
        "precision-policy",
        "import torch\nclass answer:\n    def __init__(self, dtype): pass\n    def __enter__(self):"
        " torch.set_autocast_enabled('cpu', True)\n    def __exit__(self, *error): pass",
        "takes torch.set_autocast_enabled",
    ),
    "the library's order": ("1f1b", OneFOneB, "takes"),
    "a function": ("peak-bytes", peak_bytes, "takes bigtrain_lab.models.steps.peak_bytes"),
    "what the function uses": (
        "peak-bytes",
        "def answer(*size):\n    from bigtrain_lab.models import steps\n    return"
        " steps.account(lambda rank: None).peak_bytes",
        "runs the step dry",
    ),
    "a method": (
        "stashing",
        "from bigtrain_lab.order.schedules.pipedream import PipeDream\nclass answer(PipeDream):\n    def"
        " versions_held(self, stage, updates):\n        return range(max(0, updates - self.ranks +"
        " stage + 1), updates + 1)",
        "takes bigtrain_lab.order.schedules.pipedream.PipeDream.version",
    ),
    "the text of a method": (
        "stashing",
        "import bigtrain_lab.order.schedules.pipedream as own\nexec(own.__loader__.get_source("
        "own.__name__), vars(own))\nanswer = own.PipeDream",
        "takes bigtrain_lab.order.schedules.pipedream.PipeDream.version",
    ),
    "a class of a module that may stay": (
        "bounded-staleness",
        "import bigtrain_lab.order.plan as plan\ndef answer(*given, **settings):\n    return"
        " plan.Turns(plan.Serve((0,), (3,)))",
        "takes bigtrain_lab.order.plan.Turns",
    ),
}


@pytest.mark.parametrize("how", THERE)
def test_an_answer_that_is_there_already_is_no_answer(how):
    topic, answer, sentence = THERE[how]
    pieces = [Piece(1, answer)] if isinstance(answer, str) else text_of(answer)
    assert f"Your answer {sentence}" in TOPICS[topic].judged(pieces, SEED).findings[0]


# -- the text of an answer -------------------------------------------------------------------------

CELLS = [
    "import torch\nfrom math import *\nunused = 1 / 0",
    "%matplotlib inline\nbase = 3; wide = 2\nbase += 1",
    "def helper(n):\n    return n * factor",
    "not python",
    "class Mine:\n    wide = 5\n    def __call__(self, x):\n        return helper(x) + base",
    "Mine.times = staticmethod(lambda x: sqrt(x))",
    "factor = 2",
    "if wide > 1:\n    factor = factor + wide",
    "class Other: pass\nrun = Other()",
]


def test_a_text_is_what_the_answer_names():
    pieces = sliced(CELLS, "Mine")
    assert [piece.text for piece in pieces] == [
        "from math import *",
        "base = 3",
        "wide = 2",
        "base += 1",
        "def helper(n):\n    return n * factor",
        CELLS[4],
        CELLS[5],
        "factor = 2",
        "if wide > 1:\n    factor = factor + wide",
        "answer = Mine",
    ]
    assert [piece.line for piece in pieces][:4] == [2, 2, 2, 3]
    assert inside.defined(pieces)()(10) == 44 and sliced(CELLS, "nobody") == []


def test_a_definition_made_anew_is_the_last():
    cells = ["a = 1\ndef f(): return a", "def f(): return a + 1", "a = 2"]
    assert [piece.text for piece in sliced(cells, "f")] == [
        "def f(): return a + 1",
        "a = 2",
        "answer = f",
    ]


def test_what_a_notebook_has_run_is_its_text(monkeypatch):
    """By the cells that were run, else by value, whatever name it has."""
    main = ModuleType("__main__")
    main.In = ["", "k = 2", "def double(x):\n    print('called')\n    return k * x"]
    for cell in main.In:
        exec(cell, vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert text_of(main.double)[-1].text == "answer = double"
    assert check("double", main.double)
    assert "pickle" in text_of(lambda x: 2 * x)[0].text and check("double", lambda x: x + x)


def test_prints_points_and_steps(capsys):
    exec(
        "def answer(x):\n    print('x is', x)\n    return 2 * x", names := {"__name__": "__main__"}
    )
    assert marks("double", names["answer"], step=2) == 3
    assert re.fullmatch(r"Your answer printed: x is \d+\nx is 1\nright.\n", capsys.readouterr().out)
    assert marks("double", lambda x: 2 * x if x < 100 else 0, step=2) == 0
    assert marks("double", lambda x: 2 * x if x < 100 else 0, step=1) == 1
    assert marks("double", None) == 0 and "no answer yet" in capsys.readouterr().out


def test_marks_are_the_least_of_all_seeds():
    marked = Double.marked(
        [Piece(1, "import random\ndef answer(x):\n    return 2 * x if x < 100 else 0")]
    )
    assert marked.shares == {"A small number": 1.0, "A large number, and a list": 0.0}
    assert [*marked.findings] == ["A large number, and a list"] and marked.steady
    ends = Double.marked([Piece(1, "def answer(x):\n    raise SystemExit")])
    assert set(ends.shares.values()) == {0.0} and "sys.exit" in ends.findings["A small number"][0]

    undefined = Double.marked([Piece(1, "def answer(x=y):\n    return 2 * x")], seeds=(1,))
    assert all("NameError" in " ".join(told) for told in undefined.findings.values())


def test_what_is_no_answer_is_a_sentence(capsys):
    with playing():
        raise TypeError("no call")
    assert "(TypeError): no call\nThe checks below" in capsys.readouterr().out
    assert Double.findings(None) == [
        "There is no answer yet, but nothing: give the function or class that you wrote."
    ]
    assert "a int" in Double.findings(3)[0]
    lock = threading.Lock()
    assert re.search("cannot travel.*open files", Double.findings(lambda x: lock)[0])
    with pytest.raises(Impossible, match="no topic called 'triple': choose one of"):
        check("triple", print)


def test_numbers_are_those_of_this_process_or_of_a_seed_and_told(capsys):
    seeds = {Double.findings(lambda x: 0)[0].split("(seed ")[1] for _ in range(3)}
    assert seeds == {f"{likeness.DRAWN})."}
    wrong, right = check("double", lambda x: 3 * x, seed=4), check("double", lambda x: x + x)
    assert (
        not wrong and "(seed 4)." in str(wrong) and right and str(right) == repr(right) == "right."
    )
    large, small = lambda x: 2 * x if x < 100 else 0, lambda x: 2 * x if x == 1 or x > 99 else 1 / 0
    assert [
        [each.partition(".")[0] for each in check("double", f).ladder] for f in (large, small)
    ] == [
        ["Step 1: right", "Step 2: 1 of 2 scenes right"],
        ["Step 1: 0 of 1 scenes right", "Step 2: 1 of 2 scenes right"],  # after what raised
    ]
    hint("double", 2)
    assert capsys.readouterr().out == "Twice.\n"
    with pytest.raises(Impossible, match="ask for 1, 2 or 3"):
        hint("double", 4)


def test_an_answer_that_keeps_something_between_calls_is_wrong():
    text = "kept = {}\ndef answer(x):\n    return kept.setdefault(x > 99, 2 * x)"
    (told,) = Double.judged([Piece(1, text)], seed=3).findings
    assert "give another result than alone, since your answer keeps something: yours [" in told


@pytest.mark.parametrize(
    "name, right, lecture",
    [
        ("sliced-lamb", "a class", NaiveLAMB),
        ("ring-all-reduce", "two loops", naive_ring_all_reduce),
    ],
)
def test_a_lecture_s_naive_version_is_the_first_right_answer(name, right, lecture):
    text = (
        inspect.getsource(lecture)
        .replace(f" {lecture.__name__}(", " answer(")
        .replace(f" {lecture.__name__}:", " answer:")
    )
    own = TOPICS[name].right[right].replace("@torch.no_grad()\ndef answer", "def answer")
    assert own.strip() == f"import torch\n\n\n{text}".strip()


@pytest.mark.parametrize(
    "name, mistake, first",
    [
        ("1f1b", "GPipe", {"0F4", "1F3", "2F2", "3F1"}),
        ("1f1b", "the drain backwards", {"1B7"}),
        ("gpipe", "1F1B", {"3B0"}),
        ("1f1b", "empty", None),
    ],
)
def test_an_order_is_played_up_to_the_first_action_that_no_right_order_has_there(
    name, mistake, first
):
    topic = TOPICS[name]
    replay = topic.judged([Piece(1, topic.wrong[mistake].text)], 5, patience=1).replay
    assert (replay is None) == (first is None)
    if replay:
        trace, tick = replay
        assert first <= {span.name for span in trace.spans() if span.start == tick}


def test_a_right_answer_that_fails_is_the_exercise_s_fault(monkeypatch):
    broken = [known.Row("small: x = 1", None, 0.0, "NameError", "no z")]
    monkeypatch.setattr(known, "rows", lambda *_, **__: {"times": broken})
    with pytest.raises(RuntimeError, match="the right answer 'times' failed with small: x = 1"):
        Double.judged([Piece(1, "def answer(x): return x")], seed=999)


def test_the_kernel_is_as_it_was():
    """Threads, random state, working directory, and no process or file left."""
    state, threads, here = torch.get_rng_state(), torch.get_num_threads(), os.getcwd()
    told("import torch, random\ntorch.manual_seed(0)\nprint('noise')\nreturn 2 * x")
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads() and here == os.getcwd()
    own = box.Box()
    assert [row.value for row in own.rows(Double, [Piece(1, "answer = lambda x: x")], 1)]
    room = Path(own._room)
    assert room.exists()
    own.close()  # waits until its processes have ended
    assert not room.exists()


IN_A_BROWSER = """
import json, re, sys
class LeftOut:
    def find_spec(name, *_):
        if re.match(sys.argv[1], name.replace(".", "/")):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, LeftOut)
sys.modules |= dict.fromkeys(("torch", "numpy", "psutil", "cloudpickle", "resource", "IPython"))
import bigtrain_lab.core
sys.platform = "emscripten"
from bigtrain_lab.grading.in_page import checked
name, *texts = json.load(sys.stdin)
print(json.dumps([json.loads(checked(name, text, 5)) for text in texts]))
"""


@pytest.mark.parametrize("name", EXERCISES)
def test_a_page_checks_an_exercise_as_a_notebook_does(name):
    """Without torch and what a page leaves out of Python, in one process, by the same sentences."""
    topic = TOPICS[name]
    answers = [*topic.right.values()][:1] + [w.text for w in topic.wrong.values()][:1]
    written = [f"{answer}\n{topic.called()} = answer" for answer in answers]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_BROWSER, UNUSABLE.pattern],
        input=json.dumps([name, *written, "def f(:"]),
        capture_output=True,
        text=True,
        check=True,
    )
    *found, broken = json.loads(done.stdout)
    for answer, page in zip(answers, found):
        assert page["findings"] == topic.text_looked_at([Piece(1, answer)], 5)[0]
    assert broken["findings"][0].startswith("Your answer raised SyntaxError")
