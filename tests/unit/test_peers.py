"""The way to another machine, how far its clock is apart, and what torchrun's ranks must agree on;
no other machine is needed."""

import json
from dataclasses import asdict
from functools import partial

import pytest
import torch
import torch.distributed as dist

from bigtrain_lab import Impossible
from bigtrain_lab.experiments import experiment
from bigtrain_lab.experiments.partition import Partition
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.models import timing
from bigtrain_lab.runtime.process import border
from bigtrain_lab.runtime.torchrun import attach as torchrun, meeting, offset
from bigtrain_lab.runtime.torchrun.meeting import Meeting
from bigtrain_lab.runtime.torchrun.peers import Peer

# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_the_true_offset_is_within_the_error_whoever_comes_and_goes_first(seed):
    """All meet at 0 of each meeting, after so long a wait and before so long a way; the other clock
    is `true` ahead."""
    torch.manual_seed(seed)
    came, went, they_came, they_went = torch.randint(1, 10**9, (4, 1 + 3 * seed))
    met, true = 10**10 * torch.arange(1 + 3 * seed), int(torch.randint(-(10**15), 10**15, ()))
    found = offset.offset(
        torch.stack([met - came, met + went], 1),
        torch.stack([met - they_came, met + they_went], 1) + true,
    )
    assert (
        abs(found.ns - true)
        <= found.error_ns
        <= ((went + they_came).min() + (they_went + came).min()) / 2 + 1
    )


# -- names, routes, ports --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, peer",
    [("node1:29400", ("node1", 29400)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[::1]:80", ("::1", 80))],
)
def test_a_peer_is_host_and_port(text, peer):
    assert Peer.of(text) == peer and str(Peer.of(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "node1",
        "node1:",
        ":80",
        "node1:0",
        "node1:65536",
        "node1:http",
        "node1:²",
        "::1:80",
        "[]:80",
        "",
    ],
)
def test_what_is_no_peer_is_one_sentence(text):
    with pytest.raises(Impossible, match="write host:port, such as node1:29400"):
        Peer.of(text)


# -- what torchrun says ----------------------------------------------------------------------------


def under(monkeypatch, **variables):
    for name in (
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "GROUP_WORLD_SIZE",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


WHOLE = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29400"}
FIRST = WHOLE | {"RANK": "0"}


@pytest.mark.parametrize(
    "variables, place",
    [
        (WHOLE, border.Place(3, 4)),
        (
            WHOLE
            | {
                "GROUP_WORLD_SIZE": "2",
                "TORCHELASTIC_RESTART_COUNT": "1",
                "TORCHELASTIC_RUN_ID": "none",
            },
            border.Place(3, 4, nodes=2, restart=1, agent=True),
        ),
        (FIRST, border.Place(0, 4, hosts=True)),
        (FIRST | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, border.Place(0, 4)),
        (WHOLE | {"MASTER_PORT": "x"}, None),
        *(({k: v for k, v in WHOLE.items() if k != name}, None) for name in WHOLE),
    ],
)
def test_a_place_is_what_torchrun_sets(variables, place, monkeypatch):
    under(monkeypatch, **variables)
    assert border.place_given() == place
    assert place is None or border.meeting_point() == ("node1", 29400)


@pytest.mark.parametrize(
    "place, ranks, words",
    [
        (
            border.Place(0, 2),
            4,
            "torchrun started 2: use torchrun --nproc-per-node=4 on one node, or ask for 2 ranks.",
        ),
        (
            border.Place(0, 4, nodes=2),
            8,
            (
                "torchrun started 4 on 2 nodes: use torchrun --nnodes=2 --nproc-per-node=4 on each"
                " of the 2 nodes, or ask for 4 ranks."
            ),
        ),
        (
            border.Place(0, 4, nodes=2),
            3,
            (
                "3 ranks cannot be shared out evenly over 2 nodes, so use torchrun"
                " --nproc-per-node=3 on one node, or ask for 4 ranks."
            ),
        ),
    ],
)
def test_another_number_of_ranks_is_refused_with_the_command_that_works(place, ranks, words):
    with pytest.raises(Impossible) as refused:
        border.refuse_other_size(place, ranks)
    assert str(refused.value).startswith(
        f"This asks for {ranks} ranks, but torchrun started "
    ) and str(refused.value).endswith(words)
    border.refuse_other_size(place, place.ranks)


def test_a_store_that_does_not_answer_is_one_sentence(monkeypatch):
    under(monkeypatch, RANK="1", WORLD_SIZE="2", MASTER_ADDR="nowhere.invalid", MASTER_PORT="29400")
    monkeypatch.setattr(meeting, "PATIENCE_S", 1)
    with pytest.raises(
        Impossible,
        match=(
            "Rank 1 does not reach the store at nowhere.invalid:29400 .*bigtrain doctor --peer"
            " nowhere.invalid:29400"
        ),
    ):
        meeting.store_of(border.place_given(), border.meeting_point())


# -- the meeting: ranks that are late or refused ---------------------------------------------------


@pytest.fixture
def meetings():
    """Makes the meetings of so many ranks at a store of torch's, each with a connection of its
    own."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield lambda size: [Meeting(store.clone(), rank, size) for rank in range(size)]


def test_a_rank_gives_up_and_says_whom_it_has_waited_for(meetings, monkeypatch):
    monkeypatch.setattr(meeting, "PATIENCE_S", 0)
    four = meetings(4)
    four[0].post("here", 0)
    four[2].post("here", 0)
    with pytest.raises(Impossible, match="Rank 0 has waited 0 s for ranks 1 and 3: see what"):
        four[0].everyones("here")


def test_the_first_reason_why_a_rank_is_refused_is_every_other_s(meetings):
    three = meetings(3)
    three[2].refuse(Impossible("No disk."))
    three[1].refuse(ValueError("late"))
    three[0].post("here", 0)
    with pytest.raises(Impossible, match="^Rank 2 on .* cannot take part. No disk.$"):
        three[0].everyones("here")


def test_a_store_that_goes_is_a_sentence(monkeypatch):
    under(monkeypatch, RANK="0", WORLD_SIZE="2", MASTER_ADDR="node1", MASTER_PORT="29400")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours = Meeting(server.clone(), 1, 2)
    del server
    with pytest.raises(Impossible, match="Rank 1 lost the connection to the store at node1:29400"):
        ours.everyones("here")


# -- only values travel ----------------------------------------------------------------------------


def test_a_program_s_digest_is_its_code_s(monkeypatch):
    def made(text):
        names = {"__name__": "typed"}
        exec(text, names)
        return names["program"]

    one = made("def program(rank, lr=1): return {'x': rank in {'a', 'b', 'c'}}")
    same = made("\n\n# moved\ndef program(rank, lr=1): return {'x': rank in {'c', 'b', 'a'}}")
    other = made("def program(rank, lr=1): return {'y': rank in {'a', 'b', 'c'}}")
    assert torchrun.digest(one) == torchrun.digest(same) != torchrun.digest(other)
    assert torchrun.digest(partial(one, lr=2)) == torchrun.digest(one)
    assert torchrun.digest(PipelineExperiment(ranks=2).program) == torchrun.digest(
        PipelineExperiment(ranks=4).program
    )
    before = torchrun.digest(PipelineExperiment().program)
    monkeypatch.setattr(
        torchrun.inspect, "getsource", lambda module: "what another node has in that file"
    )
    assert torchrun.digest(PipelineExperiment().program) != before


def test_a_program_that_depends_on_what_was_measured_is_told_rank_0_s(monkeypatch):
    asked = Partition(
        profiled="counted", partition="balanced", ranks=2, layers=4, hardware="a100-nvlink"
    )
    caught = {}
    monkeypatch.setattr(
        experiment.runtime, "launch", lambda program, **options: caught.update(options)
    )
    measured = asked.replace(
        profiled="measured",
        facts={
            "machine": asdict(asked.profile),
            "timed": {timing.timed_as(asked.config, asked.rows): [[1, 1]] * 3},
        },
    )
    measured.run()
    far = {
        "machine": asdict(asked.profile),
        "timed": {timing.timed_as(asked.config, asked.rows): [[1, 1], [1, 1], [50, 50]]},
    }
    told = caught["informed"](json.loads(json.dumps(far))).__self__
    assert told.model_dump() == measured.model_dump() and told.slices != measured.slices
