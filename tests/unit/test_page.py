"""A run's page: it holds the player as it is and every clock's trace, asks for nothing, and nothing
in a run can break out of it."""

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bigtrain_lab import Experiment, Player, Run, Trace, launch
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.view.page import asset, page
from bigtrain_lab.view.player import pack

SMALL = {"ranks": 2, "micro_batches": 2, "steps": 1, "layers": 2, "width": 16, "sequence": 8}


class Elements(HTMLParser):
    """What a browser makes of a page: its elements, and the text of scripts, styles and of all the
    rest."""

    def __init__(self, text: str):
        super().__init__()
        self.found, self.texts, self._open, self.words = [], {}, None, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._open = (tag, len(self.found))
        self.found.append((tag, dict(attributes)))

    def handle_data(self, text):
        if self._open and self._open[0] in ("script", "style"):
            self.texts[self._open[1]] = self.texts.get(self._open[1], "") + text
        else:
            self.words.append(text)

    def handle_endtag(self, tag):
        self._open = None

    def all(self, tag: str) -> list[dict]:
        return [about for name, about in self.found if name == tag]

    def text(self, tag: str, **about) -> str:
        return next(
            text
            for number, text in self.texts.items()
            if self.found[number][0] == tag and about.items() <= self.found[number][1].items()
        )

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())

    def packed(self) -> dict[str, bytes]:
        """Clock -> what the player gets."""
        told = json.loads(self.text("script", id="btl-run"))
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
    told = json.loads(held.text("script", id="btl-run"))
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
    assert Player._esm in held.text("script", type="module") and Player._css in held.text("style")
    assert asset("page.js") in held.text("script", type="module")
    within = text.replace("http://www.w3.org/2000/svg", "").replace(
        "url(#", ""
    )  # of saved pictures
    assert not re.search(r"https?:|//cdn|@import|url\(|\bimport[ (]|fetch\(", within)
    assert not any(
        set(about) & {"src", "href", "srcset", "action", "style"} for _, about in held.found
    )
    assert not any(name.startswith("on") for _, about in held.found for name in about)


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
        not held.all("img") and not held.all("b")[1:] and len(held.all("script")) == 2
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
    assert (
        not Elements(plain).all("i") and "</script><i>" in Elements(plain).said and plain.encode()
    )
    assert "kept aside" not in Elements(plain).said


def broken(rank):
    """A program for two ranks that fails after one action."""
    with rank.span("0F0"):
        pass
    if rank.index == 1:
        raise ValueError("<b>on purpose</b>")


def test_a_failed_run_says_why_and_what_there_is(tmp_path):
    experiment = PipelineExperiment(**SMALL)
    run = launch(
        broken,
        2,
        directory=tmp_path / "run",
        cost={"F": 1},
        settings={"experiment": "pipeline", **experiment.model_dump(mode="json")},
        name="pipeline",
        steps=1,
    )
    with pytest.raises(Exception, match="on purpose"):
        run.wait()
    run = Run.open(run.directory)
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
    bodies = json.loads(Elements(page(traces_of(*done), *done)).text("script", id="btl-run"))[
        "bodies"
    ]
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
