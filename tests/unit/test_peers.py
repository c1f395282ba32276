"""The way to another machine, how far its clock is apart, and what torchrun's ranks must agree on; no other machine is needed."""

import random
import socket
import sys
import threading

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime import board, border, launch, offset, peers, team
from bigtrain_lab.runtime.board import Board
from bigtrain_lab.runtime.peers import Peer

NS = st.integers(1, 10**9)


# -- clocks -------------------------------------------------------------------------------------------------------


@given(st.integers(-10**15, 10**15), st.lists(st.tuples(NS, NS, NS), min_size=1, max_size=30))
def test_the_true_offset_is_within_the_error_whatever_share_each_way_takes(true, questions):
    """Each question takes `there`, then `thinks`, then `back`; the other clock is `true` ahead."""
    now, times = 0, []
    for there, thinks, back in questions:
        times.append((now, now + there + true, now + there + thinks + true, now + there + thinks + back))
        now += there + thinks + back
    found = offset.offset(times)
    assert abs(found.ns - true) <= found.error_ns <= min(there + back for there, _, back in questions) / 2 + 2


def test_the_smallest_round_trip_counts_and_thinking_is_not_part_of_it():
    slow, quick = (0, 1050, 1060, 2010), (5000, 6010, 6910, 5940)  # there 50, back 1950; there 10, thinks 900, back 30; 1000 ahead
    assert offset.offset([slow, quick]) == offset.offset([quick]) == (990, 21)


def test_messages_as_slow_as_the_quickest_never_arrive_before_they_were_sent():
    draw, true = random.Random(1), 10**6
    ways = [(draw.randint(100, 200), draw.randint(1000, 2000)) for _ in range(20)]
    found = offset.offset([(0, there + true, there + true, there + back) for there, back in ways])
    there, back = min(ways, key=sum)
    assert there + true - found.ns > 0 and back + found.ns - true > 0 and found.ns != true


def test_clocks_are_told_where_there_are_several():
    here = {"name": "a", "ranks": [0, 1], "offset_ns": 0, "ahead_s": 0.0, "error_s": 0.0}
    assert offset.told([]) == offset.told([here]) == ""
    there = {"name": "b", "ranks": [2, 3], "offset_ns": 7, "ahead_s": 0.0013, "error_s": 5e-5}
    assert offset.told([here, there]) == ("Clocks of 2 machines: that of rank 2 (b) is 1.3 ms ahead of rank 0's, known to 50 µs. "
                                          "Measured times are corrected by what was found at the start.")
    moved = [here | {"moved_s": 2e-9}, there | {"moved_s": 3.2e-4}]
    assert offset.told(moved) == offset.told([here, there]) + " By the end they had moved apart by 320 µs at most."
    assert "is 1.3 ms behind rank 0's" in offset.told([here, {**there, "ahead_s": -0.0013}])
    assert "that of rank 2 (b) agrees with rank 0's to 50 µs." in offset.told([here, {**there, "ahead_s": -4e-5}])


# -- names, routes, ports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, peer", [("node1:29400", ("node1", 29400)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[::1]:80", ("::1", 80))])
def test_a_peer_is_host_and_port(text, peer):
    assert Peer.of(text) == peer and str(Peer.of(text)) == text


@pytest.mark.parametrize("text", ["node1", "node1:", ":80", "node1:0", "node1:65536", "node1:http", "node1:²", "::1:80", "[]:80", ""])
def test_what_is_no_peer_is_one_sentence(text):
    with pytest.raises(Impossible, match="write host:port, such as node1:29400"):
        Peer.of(text)


def test_a_name_server_that_says_nothing_keeps_nobody_waiting(monkeypatch):
    never = threading.Event()

    def silent(*_, **__):
        never.wait()
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with pytest.raises(peers.Unreachable, match="no answer within 0.05 s"):
        peers.resolve(Peer("slow", 1), 0.05)
    never.set()


def test_the_route_to_this_machine_is_its_loopback():
    assert peers.own_address("127.0.0.1") == "127.0.0.1" and peers.interface_of("127.0.0.1") == border.LOOPBACK
    assert peers.interface_of("203.0.113.77") is None
    with pytest.raises(peers.Unreachable):
        peers.own_address("not an address")


def test_ranks_of_several_networks_talk_over_what_reaches_the_others(monkeypatch):
    """Rank 0's own machine may know itself by its loopback: then the way to another rank tells."""
    asked = []
    monkeypatch.setattr(peers, "own_address", lambda address: asked.append(address) or "10.0.0.1")
    monkeypatch.setattr(peers, "interface_of", {"10.0.0.1": "eth1", "10.0.0.2": "eth0"}.get)
    assert peers.between("10.0.0.2", ["10.0.0.1"]) == "eth0" and not asked
    assert peers.between("127.0.1.1", ["127.0.0.1", "10.0.0.2"]) == "eth1" and asked == ["10.0.0.2"]
    assert peers.between("127.0.1.1", ["127.0.0.1"]) == "eth1" and asked[-1] == peers.OUTSIDE


# -- what torchrun says -------------------------------------------------------------------------------------------


def under(monkeypatch, **variables):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
                 "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_place_is_what_torchrun_sets(monkeypatch):
    whole = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29400"}
    under(monkeypatch, **whole)
    assert border.place_given() == border.Place(3, 4) and border.meeting_point() == ("node1", 29400)
    under(monkeypatch, **whole, GROUP_WORLD_SIZE="2", TORCHELASTIC_RESTART_COUNT="1", TORCHELASTIC_RUN_ID="none")
    assert border.place_given() == border.Place(3, 4, nodes=2, restart=1, agent=True)
    under(monkeypatch, **{**whole, "RANK": "0"})
    assert border.place_given() == border.Place(0, 4, hosts=True)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert border.place_given() == border.Place(0, 4)
    for name in whole:
        under(monkeypatch, **{k: v for k, v in whole.items() if k != name})
        assert border.place_given() is None
    under(monkeypatch, **{**whole, "MASTER_PORT": "x"})
    assert border.place_given() is None


@pytest.mark.parametrize("place, ranks, words", [
    (border.Place(0, 2), 4, "torchrun started 2: use torchrun --nproc-per-node=4 on one node, or ask for 2 ranks."),
    (border.Place(0, 4, nodes=2), 8, "torchrun started 4 on 2 nodes: use torchrun --nnodes=2 --nproc-per-node=4 on each of the 2 nodes, or ask for 4 ranks."),
    (border.Place(0, 4, nodes=2), 3, "3 ranks cannot be shared out evenly over 2 nodes, so use torchrun --nproc-per-node=3 on one node, or ask for 4 ranks."),
])
def test_another_number_of_ranks_is_refused_with_the_command_that_works(place, ranks, words):
    with pytest.raises(Impossible) as refused:
        border.refuse_other_size(place, ranks)
    assert str(refused.value).startswith(f"This asks for {ranks} ranks, but torchrun started ") and str(refused.value).endswith(words)
    border.refuse_other_size(place, place.ranks)


def test_what_ranks_were_asked_for_must_be_alike():
    team.refuse_differences([{"steps": 3}, {"steps": 3}])
    with pytest.raises(Impossible, match="Rank 2 was started with micro-batches 4 and rank 0 with 8: give every node"):
        team.refuse_differences([{"micro_batches": 8}, {"micro_batches": 8}, {"micro_batches": 4}])


def test_an_experiment_may_have_a_setting_that_is_called_as_what_a_launch_is_asked_for(monkeypatch):
    under(monkeypatch, RANK="0", WORLD_SIZE="2", MASTER_ADDR="node1", MASTER_PORT="29400")
    monkeypatch.setattr(board, "join", lambda place, point: Board(dist.HashStore(), place.index, place.ranks))
    monkeypatch.setattr(sys.modules[launch.__module__], "run_in_place", lambda place, program, asked, *_: asked)
    asked = launch(lambda rank: None, 2, settings={"device": "a knob", "threads": 7})
    assert (asked["device"], asked["threads"]) == ("cpu", 1)
    team.refuse_differences([asked, asked])
    for other in {"device": "another", "threads": 7}, {"device": "a knob"}, {"device": "a knob", "threads": 7, "more": 1}:
        with pytest.raises(Impossible, match="Rank 1 was started with (device 'another'|threads None|more 1) and rank 0 with"):
            team.refuse_differences([asked, {**asked, "settings": other}])


def test_a_store_that_does_not_answer_is_one_sentence(monkeypatch):
    under(monkeypatch, RANK="1", WORLD_SIZE="2", MASTER_ADDR="nowhere.invalid", MASTER_PORT="29400")
    with pytest.raises(Impossible, match="Rank 1 does not reach rank 0 at nowhere.invalid:29400 .*bigtrain doctor --peer nowhere.invalid:29400"):
        board.join(border.place_given(), border.meeting_point())
