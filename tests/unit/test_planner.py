"""The planner's closed forms beside its labs' predictions, and what it refuses."""

import random
from dataclasses import replace

import pytest

from bigtrain_lab.cli import main
from bigtrain_lab.core import Cost, Hardware, Impossible
from bigtrain_lab.core.hardware import Wire
from bigtrain_lab.models import GPTConfig
from bigtrain_lab.order.schedule import Schedule
from bigtrain_lab.order.simulate import simulate
from bigtrain_lab.planner import Job, Plan, Search, Way

SMALL = GPTConfig(layers=4, width=128, heads=16, sequence=64, vocabulary=512)


@pytest.fixture(scope="module")
def search():
    return Search(Job.of_gpt(SMALL, 8), Hardware.named("a100-nvlink"), 4)


@pytest.mark.parametrize("way", [Way(), Way(2, True, True, True), Way(8)])
@pytest.mark.parametrize("name", ["embedding", "block", "head"])
def test_a_piece_is_affine_in_rows_and_in_slices(search, name, way):
    piece, run = search.piece(name, way), search.job.run(name, 5, way)
    for kind in "FBU":
        acted = run.usual(kind)
        assert piece.work(kind, 5) == acted.work
        assert piece.calls(kind, 5) == [(call.kind, call.bytes) for call in acted.called]
        held = acted.highest_bytes - sum(acted.before.values())
        assert piece.most(kind, 5) == held, kind


def test_closed_forms_are_near_what_the_labs_predict(search):
    """Without ZeRO within 1.5% in time; all plans' memory within a tenth."""
    plain = [each for each in search.fitting if not each.plan.zero]
    for each in random.Random(0).sample(plain, 8):
        lab = search.simulated(each.plan)
        assert each.seconds == pytest.approx(lab.seconds, rel=0.015), each.plan
        assert each.bytes == pytest.approx(lab.bytes, rel=0.1), each.plan


def test_a_slow_link_holds_a_pipeline_back(search):
    slow = replace(search.hardware, inside=Wire("slow", 1e-3, 1e9))
    far, plan = Search(search.job, slow, 4), Plan(1, 4, Way(), 1, 0)
    stages = far.stages(plan)
    times = {"F": [s.forward for s in stages], "B": [s.backward for s in stages], "U": 0}
    sent = dict.fromkeys("FB", stages[0].message_bytes)
    cost = Cost(times, sent, links=slow.links(4), **slow.clock(1))
    told = simulate(Schedule.named("1f1b")(4, 8), cost).step_time
    assert far.seconds(plan) == pytest.approx(told, rel=0.05)


def test_the_frontier_is_what_no_plan_beats(search):
    times = [each.seconds for each in search.fitting]
    assert times == sorted(times) and search.best == search.frontier[0]
    for each in search.fitting:
        better = [e for e in search.fitting if e.seconds <= each.seconds and e.bytes < each.bytes]
        assert (each in search.frontier) == (not better) or each.bytes in [
            e.bytes for e in search.frontier
        ]


def test_what_cannot_be_says_why(search):
    refused = {
        Plan(1, 8, Way(), 1, 0): "stages",
        Plan(1, 1, Way(3), 1, 0): "slices",
        Plan(3, 1, Way(), 1, 0): "samples equally",
    }
    assert all(word in search.impossible(plan) for plan, word in refused.items())
    small = Search(search.job, search.hardware, 1, memory_bytes=10**6)
    assert not small.fitting and all("needs" in why for why in small.refused.values())
    with pytest.raises(Impossible, match="Take more devices"):
        small.best  # noqa: B018


def test_the_command_names_the_fastest_plan(capsys):
    small = "--layers 4 --width 128 --heads 16 --sequence 64 --vocabulary 512 --batch 8 --devices 2"
    assert main(["plan", *small.split(), "--show", "2"]) == 0
    assert "The fastest is" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", "--hardware", "unit"]) == 2
