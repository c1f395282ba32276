"""A run's page: it holds the player as it is and every clock's trace, asks for nothing, and nothing
in a run can break out of it."""

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace

import pytest
from bs4 import BeautifulSoup  # nbconvert's

from bigtrain_lab import Experiment, Player, Run, Trace
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.view.page import asset, page
from bigtrain_lab.view.player import pack
from tests.unit.ranks import fails

SMALL = {"ranks": 2, "micro_batches": 2, "steps": 1, "layers": 2, "width": 16, "sequence": 8}


class Elements(BeautifulSoup):
    """What a browser makes of a page."""

    def __init__(self, text: str):
        super().__init__(text, "html.parser")

    @property
    def said(self) -> str:
        """Its words, without scripts and styles."""
        return " ".join(self.get_text(" ").split())

    def packed(self) -> dict[str, bytes]:
        """Clock -> what the player gets."""
        told = json.loads(self.find(id="btl-run").string)
        bodies = [gzip.decompress(b64decode(body)) for body in told["bodies"]]
        return {
            clock: f'{{"clock":"{clock}",'.encode() + bodies[number]
            for clock, number in told["clocks"].items()
        }


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(experiment, run) of a small run that is done."""
    experiment = PipelineExperiment(**SMALL)
    run = experiment.run(directory=tmp_path_factory.mktemp("runs") / "done")
    run.wait()
    return experiment, Run.open(run.directory)


def traces_of(experiment, run) -> dict[str, Trace]:
    return {
        "predicted": experiment.predict(),
        "modelled": run.trace("modelled"),
        "measured": run.trace("measured"),
    }


def test_it_holds_every_clock_and_equal_ones_once(done):
    traces = traces_of(*done)
    traces["modelled"] = replace(traces["predicted"], clock="modelled")
    held = Elements(page(traces, *done))
    assert held.packed() == {clock: pack(trace) for clock, trace in traces.items()}
    told = json.loads(held.find(id="btl-run").string)
    assert (
        told["clocks"] == {"predicted": 0, "modelled": 0, "measured": 1}
        and len(told["bodies"]) == 2
        and told["first"] == "modelled"
    )


def test_it_tells_the_run_in_words(done):
    experiment, run = done
    said = Elements(page(traces_of(*done), *done)).said
    for words in (
        experiment.question,
        "pipeline on 2 ranks",
        ": done.",
        "step time 9 slots 9 slots",
        "as planned",
        "In all,",
        "bigtrain run pipeline --ranks 2",
        "micro-batches 2",
        "tied off",
        "fault none",
    ):
        assert words in said, words
    assert "chunks" not in said, "what has no effect is left out"


def test_the_player_is_in_it_as_it_is_and_nothing_is_asked_for(done):
    text = page(traces_of(*done), *done)
    held = Elements(text)
    script = held.find("script", type="module").string
    assert Player._esm in script and asset("page.js") in script
    assert Player._css in held.find("style").string
    within = text.replace("http://www.w3.org/2000/svg", "").replace(
        "url(#", ""
    )  # of saved pictures
    assert not re.search(r"https?:|//cdn|@import|url\(|\bimport[ (]|fetch\(", within)
    names = {name for element in held(True) for name in element.attrs}
    assert not names & {"src", "href", "srcset", "action", "style"}
    assert not any(name.startswith("on") for name in names)


def test_nothing_in_a_run_breaks_out_of_the_page(tmp_path):
    evil = tmp_path / "<" / "script><img src=x onerror=alert(1)>&\"'\u2028.txt"
    evil.parent.mkdir()
    evil.write_text("to be or not to be " * 40)
    experiment = PipelineExperiment(**SMALL, text=str(evil))
    trace = experiment.predict()
    odd = trace.events[0]._replace(name="</script><b>")
    held = Elements(
        page({"predicted": replace(trace, events=(odd, *trace.events[1:]))}, experiment)
    )
    assert (
        not held("img") and not held("b")[1:] and len(held("script")) == 2
    )  # the one <b>: a sentence of the whole
    assert str(evil).split("\u2028")[0] in held.said
    assert json.loads(held.packed()["predicted"]) == json.loads(
        pack(replace(trace, events=(odd, *trace.events[1:])))
    )
    plain = page(
        {
            "predicted": replace(
                trace,
                settings={
                    "facts": {"profile": "kept aside"},
                    "<i>": "</script><i>",
                    "experiment": "<i>",
                    "half": "\udce9",
                },
            )
        }
    )
    assert not Elements(plain)("i") and "</script><i>" in Elements(plain).said and plain.encode()
    assert "kept aside" not in Elements(plain).said


def broken(rank):
    """A program for two ranks that fails after one action."""
    with rank.span("0F0"):
        pass
    if rank.index == 1:
        raise ValueError("<b>on purpose</b>")


def test_a_failed_run_says_why_and_what_there_is():
    experiment = PipelineExperiment(**SMALL)
    failed = fails(
        broken,
        2,
        cost={"F": 1},
        settings={"experiment": "pipeline", **experiment.model_dump(mode="json")},
        name="pipeline",
        steps=1,
    )
    run = Run.open(failed.directory)
    held = Elements(page(traces_of(experiment, run), experiment, run))
    assert "Rank 1 failed: ValueError: <b>on purpose</b>" in held.said and ": failed." in held.said
    assert (
        "In all," not in held.said
        and "a step" not in held.said
        and "step time 9 slots – –" in held.said
    )
    packed = {clock: json.loads(body) for clock, body in held.packed().items()}
    assert (
        packed["modelled"]["spans"]
        and packed["modelled"]["unfinished"]
        and not packed["predicted"]["unfinished"]
    )


@pytest.mark.slow
def test_the_same_run_gives_the_same_page_and_a_long_one_stays_small(done):
    bodies = json.loads(Elements(page(traces_of(*done), *done)).find(id="btl-run").string)["bodies"]
    assert all(b64decode(body)[4:8] == bytes(4) for body in bodies), "the time of packing is in it"
    long = PipelineExperiment(steps=200, layers=8, width=16, sequence=8)
    text = page({"predicted": long.predict()}, long)
    assert (
        len(json.loads(Elements(text).packed()["predicted"])["spans"]) == 13_600
        and len(text) < 450_000
    )


@pytest.mark.parametrize("name", Experiment.all())
def test_every_experiment_has_a_page(name):
    experiment = Experiment.named(name)()
    trace = experiment.predict()
    held = Elements(page({trace.clock: trace}, experiment))
    assert (
        experiment.question in held.said
        and f"bigtrain run {name}" in held.said
        and held.packed()[trace.clock] == pack(trace)
    )
