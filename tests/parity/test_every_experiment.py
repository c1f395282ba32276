"""Every experiment there is, also one added since: a run's clock and bytes are those of its
prediction, and its numbers, on every rank, those of its reference. A wrong experiment does not
pass. What its panel says of its ranks' time is so.
"""

import numpy as np
import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Memory, Trace
from bigtrain_lab.core.cost import COLLECTIVES
from bigtrain_lab.core.peak import peak
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.experiments.staleness import Staleness
from bigtrain_lab.order.plan import SLICES
from bigtrain_lab.panel import show
from bigtrain_lab.view.report import summary


def exact(cls: type[Experiment]) -> Experiment:
    """As its panel opens, but two steps long and in float64 where it has the knobs `steps` and
    `dtype`."""
    wanted = {"steps": 2, "dtype": "float64"}
    return cls(**{name: value for name, value in wanted.items() if name in cls.knobs()})


@pytest.mark.parametrize("name", Experiment.all())
def test_a_run_is_as_predicted_and_as_one_process(name, tmp_path):
    asked = exact(Experiment.named(name))
    run = asked.run(directory=tmp_path / "run", jitter_s=0.002)
    run.wait()
    findings = run_differs(asked, run)
    assert run.result and not findings, "\n".join(findings)
    predicted, modelled = asked.predict(), run.trace("modelled")
    assert predicted.where(Memory).events == modelled.where(Memory).events  # inside actions too
    assert [peak(predicted, rank) for rank in range(asked.ranks)] == [
        peak(modelled, rank) for rank in range(asked.ranks)
    ]
    for trace in run.traces().values():
        assert trace.shares() == pytest.approx(recomputed(trace), abs=1e-12) and sum(
            trace.shares()
        ) == pytest.approx(1, abs=1e-12)
    assert "compute {:.1%}, waits {:.1%}, idle {:.1%}".format(*recomputed(modelled)) in summary(
        run.summary()
    )


@pytest.mark.parametrize("name", Experiment.all())
def test_a_panel_says_for_which_share_of_the_time_ranks_compute_wait_and_idle(name):
    """In the last three rows of its table; a rank alone waits for nobody."""
    panel, names = show(name), ["compute share", "waits share", "idle share"]
    shares, rows = (
        recomputed(panel.traces["predicted"]),
        [row for row in panel.rows if row.quantity in names],
    )
    if panel.experiment.ranks == 1:
        assert shares == (1, 0, 0) and not rows
    else:
        assert [row.quantity for row in panel.rows[-3:]] == names and all(
            f"<td>{name}</td>" in panel.children[-1].value for name in names
        )
        assert [row.predicted.value / 100 for row in rows] == pytest.approx(shares, abs=1e-12)


def recomputed(trace: Trace) -> tuple[float, float, float]:
    """Compute, waits and idle of all ranks, each stretch between two ends of events looked at
    alone."""
    events = [*trace.spans(), *trace.transfers()]
    begin, end = min(e.start for e in events), max(e.end for e in events)
    spent = np.zeros(3)
    for rank in range(trace.ranks):
        spans, free = trace.spans(rank), {}
        messages = sorted(
            (e for e in trace.transfers() if e.rank == rank and e.kind not in COLLECTIVES),
            key=lambda e: (e.end, -e.start),
        )
        edges = np.unique(
            [begin, end, *(at for e in (*spans, *messages) for at in (e.start, e.end))]
        )
        works, stands, going = np.zeros((3, len(edges) - 1), bool)
        for span in spans:
            inside = slice(*np.searchsorted(edges, (span.start, span.end)))
            collective = span.kind in COLLECTIVES and span.lane in ("compute", f"comm:{SLICES}")
            (stands if collective else works if span.lane == "compute" else going)[inside] = True
        for message in messages:  # behind the one before at its port
            going[
                slice(
                    *np.searchsorted(
                        edges, (max(message.start, free.get(message.lane, 0)), message.end)
                    )
                )
            ] = True
            free[message.lane] = message.end
        long, computes, waits = np.diff(edges), works & ~stands, stands | going & ~works
        spent += (long * computes).sum(), (long * waits).sum(), (long * ~(computes | waits)).sum()
    return tuple(spent / ((end - begin) * trace.ranks))


# -- wrong ones; they inherit their name, so they are on no menu -----------------------------------


class Replicated(Staleness):
    """A right one, in which every rank returns `all` too."""

    def program(self, rank):
        return super().program(rank) | {"all": self.replica(rank)}

    def replica(self, rank) -> float:
        return 1.0

    def reference(self):
        return super().reference() | {"all": np.ones(())}


class WrongReplica(Replicated):
    """Only the highest of two ranks is off, and `run.result` tells the lowest's."""

    def replica(self, rank) -> float:
        return 1 + 1e-9 * rank.index


class WrongReference(Replicated):
    def reference(self):
        right = super().reference()
        return right | {"layers.1.weight": right["layers.1.weight"] * (1 + 1e-11)}


class MissingReference(Replicated):
    def reference(self):
        return {name: array for name, array in super().reference().items() if name != "loss"}


class MissingResult(Replicated):
    def reference(self):
        return super().reference() | {"accuracy": np.ones(1)}


class WrongPrediction(Replicated):
    def predict(self):
        return self.replace(micro_batches=self.micro_batches + 1).simulated()


class WrongBytes(Replicated):
    def stage_run(self, number, rehearsal):
        part = super().stage_run(number, rehearsal)
        return part._replace(
            acted={
                like: acted._replace(after=more(acted.after)) for like, acted in part.acted.items()
            }
        )


def more(held):
    return held | {"activations": held["activations"] + 8} if "activations" in held else held


SMALL = {"schedule": "1f1b", "ranks": 2, "micro_batches": 4, "steps": 2, "width": 8, "rows": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the right program, and of that whose replicas differ."""
    runs = {
        cls: cls(**SMALL).run(directory=tmp_path_factory.mktemp("run") / "run")
        for cls in (Replicated, WrongReplica)
    }
    for run in runs.values():
        run.wait()
    return runs


@pytest.mark.parametrize(
    "wrong, told",
    [
        (WrongReference, ["rank 1: layers.1.weight is off by 1.00e-11, allowed 1e-12"]),
        (MissingReference, ["rank 1: loss should not be there"]),
        (MissingResult, ["accuracy is missing on every rank"]),
        (WrongReplica, ["rank 1: all is off by 1.00e-09, allowed 1e-12"]),
        (Replicated, []),
    ],
)
def test_wrong_numbers_are_told_by_rank_and_name(finished, wrong, told):
    assert run_differs(wrong(**SMALL), finished.get(wrong, finished[Replicated])) == told


@pytest.mark.parametrize(
    "wrong, where",
    [(WrongPrediction, "lane compute, event"), (WrongBytes, "activations: predicted")],
)
def test_a_wrong_prediction_is_told(finished, wrong, where):
    assert {
        f"rank {rank}, {where}" in "\n".join(run_differs(wrong(**SMALL), finished[Replicated]))
        for rank in (0, 1)
    } == {True}
