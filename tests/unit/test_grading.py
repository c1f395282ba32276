"""Grading by likeness: each gallery holds, a cheat is told, and nothing that an answer does harms
the one who asks."""

import json
import os
import re
import shutil
import subprocess
import sysconfig
import threading
import time
import venv
from importlib import import_module
from pathlib import Path

import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.grading import Scene, Topic, Wrong, assert_right, box, check, hint, topics
from bigtrain_lab.grading import folder as folders
from bigtrain_lab.grading.fence import Refused
from bigtrain_lab.grading.folder import read
from bigtrain_lab.grading.proof import faults
from bigtrain_lab.models import peak_bytes
from bigtrain_lab.order.schedule import Schedule
from bigtrain_lab.order.schedules.one_f_one_b import OneFOneB
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler

TOPICS = Topic.all()


@pytest.fixture(autouse=True)
def no_schedule_stays():
    """A class that an answer defines joins the schedules, as a student's does."""
    before = list(Schedule._members)
    yield
    Schedule._members[:] = before


@pytest.mark.parametrize("name", TOPICS)
def test_a_gallery_holds(name):
    """On one seed; `make grading-proof` plays twenty, and mutants."""
    assert list(faults(TOPICS[name], seed=0)) == []


@pytest.mark.parametrize("name", TOPICS)
def test_a_right_answer_passes_over_the_fence(name):
    first = next(iter(TOPICS[name].right.values()))
    assert TOPICS[name].findings(typed(first), seed=5) == []


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_has_right_answers_that_differ_and_three_hints(name):
    topic = TOPICS[name]
    assert len({*topic.right.values()}) >= 2 and topic.wrong and len(topic.hints) == 3


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
    """Where a lesson checks it, the starter of exercise.md is a cell of that lesson, but for
    blanks."""
    start = re.search(r"```python\n(.*?)\n```", read(folder / "exercise.md"), re.DOTALL)[1]
    name = import_module(f"{topics.__name__}.{folder.name}.probe").NAME
    for file in (folder.parents[3] / "notebooks").glob("*.ipynb"):
        cells = [
            squeezed("".join(cell["source"]))
            for cell in json.loads(read(file))["cells"]
            if cell["cell_type"] == "code"
        ]
        assert (squeezed(start) in cells) == any(f'check("{name}"' in cell for cell in cells)


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


# -- what an answer may do -------------------------------------------------------------------------


class Double(Topic):
    """Twice a number: small, for the tests of the engine."""

    name = "double"
    right = {
        "times": "def answer(x):\n    return 2 * x",
        "plus": "def answer(x):\n    return x + x",
    }
    wrong = {
        "thrice": Wrong(
            "That is three times the number: double it.", "def answer(x):\n    return 3 * x"
        ),
        "thrice from 100 on": Wrong(
            "Large numbers come out three times as large: double each.",
            "def answer(x):\n    return 2 * x if x < 100 else 3 * x",
        ),
        "needs a name": Wrong("There is no y: use x.", "def answer(x):\n    return 2 * y"),
    }
    hints = ("How often?", "Twice.", "x + x.")
    allows = ("bigtrain_lab.order.schedule",)

    @staticmethod
    def probe(answer, draw):
        small, large = draw.randint(2, 50), draw.randint(100, 999)
        yield Scene(f"x = {small}", lambda: answer(small))
        yield Scene(
            f"x = {large}",
            lambda: {"double": answer(large), "of a list": [answer(n) for n in (1, large)]},
        )


def typed(text: str, **names):
    """The answer that a text defines, as if a student had typed it."""
    names["__name__"] = "__main__"
    exec(compile(text, "/tmp/ipykernel_1/2.py", "exec"), names)
    return names["answer"]


def told(body: str, **names) -> list[str]:
    return Double.findings(
        typed("def answer(x):\n" + "".join(f"    {line}\n" for line in body.splitlines()), **names),
        seed=1,
    )


def test_findings_are_a_known_mistake_s_sentence_or_both_values():
    assert told("return 2 * x") == [] == told("return x << 1")
    x = int(told("return 3 * x")[1].split("x = ")[1].split()[0])
    assert told("return 3 * x") == [
        "That is three times the number: double it.",
        f"Yours {3 * x}, right {2 * x}. Seen with x = {x} (seed 1).",
    ]
    sentence, seen = told("return x * (2 + (x > 99))")
    assert sentence.startswith("Large numbers") and seen.startswith("Double: yours")
    assert told("return 2 * x + 1") == [
        f"Yours {2 * x + 1}, right {2 * x}. Seen with x = {x} (seed 1)."
    ]
    (unlike,) = told("return 2 * x if x != 1 else 5")
    assert unlike.startswith("Of a list, at [0]: yours 5, right 2. Seen with x = ")
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
    "y = x\nreturn y / 0": "raised ZeroDivisionError: division by zero, at your line 3",
    "import sys\nsys.exit(0)": "called sys.exit, at your line 3",
    "import ctypes\nctypes.string_at(0)": "by SIGSEGV: it was at your line 3",
    "import os\nos._exit(0)": "with exit code 0",
    "import torch\ntorch.ones(10**10)": "needs more than 4.3 GB, at your line 3",
    "x = 'a' * 10**10": "needs more than 4.3 GB, at your line 2",
}


@pytest.mark.parametrize("body", ENDS)
def test_an_error_is_told_with_the_student_s_line(body):
    assert ENDS[body] in told(body)[0]


def test_a_known_mistake_that_raises_is_told_with_the_error():
    known, error, _ = told("return 2 * y")
    assert known == "There is no y: use x." and "NameError" in error and "your line 2" in error
    (called, *_) = TOPICS["timing"].findings(typed("def answer(): return 1"), 1)
    assert "could not be called as the exercise does" in called


@pytest.mark.parametrize(
    "loop",
    [
        "while True: pass",
        "import time\ntime.sleep(10**6)",
    ],
)
def test_what_never_ends_is_told_with_its_line_and_is_ended(loop, monkeypatch):
    monkeypatch.setattr(box, "CPU_S", 1)
    monkeypatch.setattr(box, "WALL_S", 3)
    sentence, seen = told(f"if x > 99:\n    pass\n{loop}")
    assert (
        re.match("Your answer did not end within [13] s: it was at your line ", sentence)
        and "x = " in seen
    )


def test_an_answer_that_swallows_every_signal_is_ended_all_the_same(monkeypatch):
    monkeypatch.setattr(box, "CPU_S", 1)
    monkeypatch.setattr(box, "WALL_S", 3)
    monkeypatch.setattr(box, "LATE_S", 2)
    assert (
        told(
            "import signal, faulthandler\nsignal.setitimer(signal.ITIMER_PROF,"
            " 0)\nfaulthandler.cancel_dump_traceback_later()\nwhile True: pass"
        )[0]
        == "Your answer did not end within 3 s."
    )


CHEATS = {
    "the library's by import": (
        "from bigtrain_lab.techniques import accumulate\nreturn 2 * x",
        "takes bigtrain_lab.techniques",
    ),
    "and swallows": (
        "try:\n    import bigtrain_lab.train.recipe\nexcept BaseException:\n    pass\nreturn 2 * x",
        "takes bigtrain_lab.train.recipe",
    ),
    "inspect": ("import inspect\ninspect.stack()\nreturn 2 * x", "looks at the code that calls it"),
    "a traceback": (
        (
            "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_back\nreturn"
            " 2 * x"
        ),
        "looks at the code that calls it",
    ),
    "the collector": (
        "import gc\ngc.get_objects()\nreturn 2 * x",
        "looks at the code that calls it",
    ),
    "a fork": ("import os\nos.fork()\nreturn 2 * x", "reaches for other processes"),
    "source, by bytes": (
        "import bigtrain_lab, os\nopen(os.fsencode(bigtrain_lab.__file__)).read()\nreturn 2 * x",
        "takes bigtrain_lab, which",
    ),
    "source, from its folder": (
        (
            "import bigtrain_lab,"
            " os\nos.chdir(bigtrain_lab.__path__[0] + '/train')\nopen('recipe.py').read()\nreturn 2 * x"
        ),
        "takes bigtrain_lab.train.recipe, which",
    ),
    "source, by a descriptor": (
        (
            "import bigtrain_lab, os\nfd = os.open(bigtrain_lab.__path__[0],"
            " os.O_RDONLY)\nos.open('recipe.py', os.O_RDONLY, dir_fd=fd)\nreturn 2 * x"
        ),
        "takes recipe.py",
    ),
    "source, by a link": (
        (
            "import bigtrain_lab, os, tempfile\nlink ="
            " tempfile.mktemp()\nos.symlink(bigtrain_lab.__file__, link)\nreturn 2 * x"
        ),
        "takes bigtrain_lab, which",
    ),
    "by code of the library's name": (
        (
            "import numpy\nexec(compile('from bigtrain_lab.train.recipe import Recipe', numpy.__file__,"
            " 'exec'), {})\nreturn 2 * x"
        ),
        "takes bigtrain_lab.train.recipe",
    ),
    "code by value": (
        (
            "from types import FunctionType\nimport bigtrain_lab\nFunctionType(compile('1',"
            " bigtrain_lab.__file__, 'eval').replace(co_name='f'), {})\nreturn 2 * x"
        ),
        "takes bigtrain_lab, which",
    ),
    "the hook found": (
        (
            "import sys\nassert not any(type(each).__module__.startswith('bigtrain') for each in"
            " sys.meta_path)\nimport bigtrain_lab.train.recipe\nreturn 2 * x"
        ),
        "takes bigtrain_lab.train.recipe",
    ),
    "the server killed": (
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nreturn 2 * x",
        "reaches for other processes",
    ),
    "C": ("import ctypes\nctypes.CDLL(None).system(b'true')\nreturn 2 * x", "calls into C by name"),
    "a fork by hand": (
        (
            "import _posixsubprocess\n_posixsubprocess.fork_exec([b'true'], [b'/bin/true'], True,"
            " (), None, None, -1, -1, -1, -1, -1, -1, -1, -1, True, False, 0, None, None, None, -1,"
            " None, False)"
        ),
        "reaches for other processes",
    ),
    "no scene": ("raise type('', (BaseException,), {})('x')", "Your answer raised"),
    "rows of its own": (
        (
            "import os, json\nfor fd in os.listdir('/proc/self/fd'):\n    if"
            " os.path.exists('/proc/self/fd/' + fd) and os.readlink('/proc/self/fd/' +"
            " fd).endswith('/rows'):\n        os.write(int(fd), b'[\"answer\"]\\n')\n       "
            " os._exit(0)"
        ),
        "writes where the check keeps",
    ),
    "few rows of its own": (
        (
            "import os, json\nfor fd in os.listdir('/proc/self/fd'):\n    if"
            " os.path.exists('/proc/self/fd/' + fd) and os.readlink('/proc/self/fd/' +"
            ' fd).endswith(\'/rows\'):\n        os.write(int(fd), b\'["answer", "x = 10", 20,'
            ' 1e-9, "", ""]\\n["answer"]\\n\')\n        os._exit(0)'
        ),
        "ended the check after 2 of its scenes",
    ),
    "rows of another form": (
        (
            "import os\nfor fd in range(3, 30):\n    try:\n        os.write(fd, b'[1, 2,"
            " 3]\\n\\xff\\n')\n    except OSError:\n        pass\nreturn 2 * x"
        ),
        "writes where the check keeps",
    ),
    "torch patched": (
        "import torch\ntorch.equal = lambda *_: True\nreturn 2 * x",
        "torch.equal is another function",
    ),
    "what it may import, patched": (
        "from bigtrain_lab.order import schedule\nschedule.Action.__str__ = lambda _: ''\nreturn 2 * x",
        "Action.__str__ is another function",
    ),
    "what it may import, inside": (
        (
            "from bigtrain_lab.order import schedule\nschedule.Action.__str__.__code__ = (lambda _:"
            " '').__code__\nreturn 2 * x"
        ),
        "changes what Action.__str__ does",
    ),
    "gradients off": (
        "import torch\ntorch.set_grad_enabled(False)\nreturn 2 * x",
        "Gradients are still switched off",
    ),
}


@pytest.mark.parametrize("how", CHEATS)
def test_a_cheat_is_told(how):
    body, sentence = CHEATS[how]
    assert sentence in told(body)[0]


ELSEWHERE = """
import test_grading as tests, torch
print(torch.__file__)
for name in ("zero-1", "checkpoint", "precision-policy", "peak-bytes"):
    right = next(iter(tests.TOPICS[name].right.values()))
    assert tests.TOPICS[name].findings(tests.typed(right), seed=5) == [], name
for how in ("inspect", "a traceback", "what it may import, inside"):
    assert tests.CHEATS[how][1] in tests.told(tests.CHEATS[how][0])[0], how
inside = "import torch\\ntorch.nn.Linear.forward.__code__ = (lambda self, x: x).__code__\\nreturn 2 * x"
assert tests.told(inside) == ["Your answer changes what Linear.forward does: leave it as it is."] + tests.told(inside)[1:]
assert tests.told("import torch\\ntorch.nn.Linear(2, 2)(3)")[0].endswith("at your line 3.")
"""


@pytest.mark.slow
def test_torch_may_lie_anywhere(tmp_path):
    """A Python of its own, to which a path file adds a folder by another name: right answers pass,
    and cheats are told."""
    venv.create(tmp_path / "env")
    (tmp_path / "libraries").symlink_to(Path(torch.__file__).parents[1])
    purelib = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")})
    (Path(purelib) / "more.pth").write_text(str(tmp_path / "libraries"))
    paths = os.pathsep.join([str(Path(box.OURS).parent), str(Path(__file__).parent)])
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", ELSEWHERE],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "libraries"))


@pytest.mark.parametrize("fails", [False, True])
def test_torch_s_functions_are_all_put_back(fails):
    """A method that stood before a base class's, too; and the next answer meets torch as it was."""
    left, own = box.Left(), (torch.mm, torch.bmm, torch.Tensor.exp)

    def run():
        torch.mm = torch.bmm = torch.Tensor.exp = len
        return 1 / (not fails)

    with pytest.raises(ZeroDivisionError if fails else Refused):
        left.then(run)
    assert (torch.mm, torch.bmm, torch.Tensor.exp) == own and "exp" not in vars(torch.Tensor)


def test_the_gallery_is_not_in_the_process_of_an_answer():
    """Neither where the functions lead that an answer is given, nor where families do."""
    looks = typed("""
def answer(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    from bigtrain_lab.core import Family
    known = [each for family in Family.__subclasses__() for each in family._members]
    topics = [each for each in known if hasattr(each, "probe")]
    assert topics and not any(each.right or each.wrong or each.hints for each in topics)
    assert not any("def answer" in str(each) for each in loss_sum.__globals__.values())
    raise LookupError("no answer here")
""")
    (told, *_) = Topic.named("accumulation").findings(looks, 1)
    assert told.startswith("Your answer raised LookupError: no answer here")


def test_a_decorator_of_torch_s_travels_too():
    text = next(iter(Topic.named("checkpoint").right.values()))
    once = text.replace(
        "    @staticmethod\n    def backward",
        "    @staticmethod\n    @torch.autograd.function.once_differentiable\n    def backward",
    )
    assert once != text and Topic.named("checkpoint").findings(typed(once), 1) == []


def test_what_a_student_caches_travels_too():
    from functools import cache

    names = {"cache": cache, "__name__": "__main__"}
    exec(
        "@cache\ndef twice(x):\n    return 2 * x\n\nclass answer:\n    @cache\n    def once(self,"
        " x): return x\n    def __new__(cls, x): return twice(object.__new__(cls).once(x))",
        names,
    )
    assert Double.findings(names["answer"], 1) == []


THERE = {
    "the library's scaler": ("loss-scaler", DynamicLossScaler, "takes"),
    "torch's scaler": ("loss-scaler", torch.amp.GradScaler, "takes"),
    "torch's scaler, made": ("loss-scaler", lambda **rule: torch.amp.GradScaler(**rule), "takes"),
    "the library's scaler, made": (
        "loss-scaler",
        lambda **rule: DynamicLossScaler(**rule),
        "takes",
    ),
    "the library's scaler, inherited": (
        "loss-scaler",
        type("Mine", (DynamicLossScaler,), {"__module__": "__main__"}),
        "takes",
    ),
    "torch's scaler, inherited": (
        "loss-scaler",
        type("Mine", (torch.amp.GradScaler,), {"__module__": "__main__"}),
        "takes",
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
    answer = typed(answer) if isinstance(answer, str) else answer
    assert f"Your answer {sentence}" in TOPICS[topic].findings(answer, 1)[0]


def test_what_is_no_answer_is_a_sentence():
    assert Double.findings(None) == [
        "There is no answer yet, but nothing: give the function or class that you wrote."
    ]
    assert "a int" in Double.findings(3)[0]
    with pytest.raises(Impossible, match="cannot travel.*open files"):
        told("return lock", lock=threading.Lock())
    with pytest.raises(Impossible, match="no topic called 'triple': choose one of"):
        check("triple", print)


def test_numbers_are_new_at_each_check_and_told(capsys):
    seeds = {
        Double.findings(typed("def answer(x): return 0"))[0].split("(seed ")[1] for _ in range(3)
    }
    assert len(seeds) > 1
    wrong, right = (
        check("double", typed("def answer(x): return 3 * x"), seed=4),
        check("double", typed("def answer(x): return x + x")),
    )
    assert (
        not wrong and "(seed 4)." in str(wrong) and right and str(right) == repr(right) == "right."
    )
    hint("double", 2)
    assert capsys.readouterr().out == "Twice.\n"
    with pytest.raises(Impossible, match="ask for 1, 2 or 3"):
        hint("double", 4)


def test_assert_right_is_silent_or_an_assertion_with_the_findings():
    assert_right("double", typed("def answer(x): return 2 * x"))
    with pytest.raises(AssertionError, match="three times the number"):
        assert_right("double", typed("def answer(x): return 3 * x"))


def test_a_right_answer_that_fails_is_the_exercise_s_fault(monkeypatch):
    monkeypatch.setattr(Double, "right", {"broken": "def answer(x):\n    return 2 * z"})
    monkeypatch.setattr(Double, "wrong", {})
    with pytest.raises(RuntimeError, match="the right answer 'broken' failed with x = "):
        told("return 2 * x")
    assert "failed" in next(faults(Double, 1))


def test_the_kernel_is_as_it_was():
    """Threads, random state, working directory, and no process or file left."""
    state, threads, here = torch.get_rng_state(), torch.get_num_threads(), os.getcwd()
    told(
        "import os, torch, random\nos.chdir('/')\ntorch.manual_seed(0)\nprint('noise')\nreturn"
        " 2 * x"
    )
    assert (
        torch.equal(state, torch.get_rng_state())
        and threads == torch.get_num_threads()
        and here == os.getcwd()
    )
    with box.Box(Double, 1, answer=typed("def answer(x): return 2 * x")) as one:
        one.rows("answer")
        room, pulse = one._room, one._pulse
    until = time.monotonic() + 60
    while pulse.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    assert not room.exists() and not pulse.is_alive()
