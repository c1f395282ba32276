"""Groups: shapes announced once, messages by name, refusals in sentences; plain and recording
alike."""

import pytest
import torch

from bigtrain_lab import Action, Cost, RankFailed, launch
from bigtrain_lab.order.plan import Message
from bigtrain_lab.runtime.talk.group import is_lost

REDUCED = {"sum": 3, "mean": 1, "max": 2, "min": 0, "product": 0}  # of 0, 1 and 2
MODES = [{"record": False}, {"clock": False}, {"cost": {"F": 1, "B": 2}}]


@pytest.mark.parametrize("mode", MODES, ids=["plain", "measured", "modelled"])
def test_messages_arrive_whatever_their_shape_dtype_and_order(mode, tmp_path):
    def program(rank):
        sent = [
            torch.arange(6.0).view(2, 3).t(),
            torch.tensor(3),
            torch.zeros(0, 4),
            torch.ones(5, dtype=torch.bfloat16),
            torch.tensor([True, False]),
            torch.tensor([1 + 2j], dtype=torch.complex128),
            torch.randn(300, 1000, requires_grad=True),
        ]
        group = rank.group()
        if rank.index == 0:
            for i, tensor in enumerate(sent):
                group.isend(tensor, 1, name=f"m{i}", site=f"s{i}")
            for i in range(100):
                group.isend(torch.full((1000,), i), 1, site="many")
            for i, name in enumerate("abc"):
                group.isend(torch.tensor(i), 1, name=name, site="named")
            group.finish()
            return {"big": sent[-1]}
        got = {
            i: group.recv(0, name=f"m{i}", site=f"s{i}") for i in reversed(range(len(sent)))
        }  # not the order of sending
        for i in range(len(sent) - 1):
            assert (
                got[i].dtype == sent[i].dtype
                and torch.equal(got[i], sent[i].detach())
                and not got[i].requires_grad
            )
            assert got[i].untyped_storage().nbytes() == got[i].nbytes
        assert [int(group.recv(0, site="many")[0]) for _ in range(100)] == list(range(100))
        assert [int(group.recv(0, name=name, site="named")) for name in "cab"] == [2, 0, 1]
        return {"got": got[6]}

    result = launch(program, 2, directory=tmp_path / "run", **mode).result
    assert (result["big"] == result["got"]).all()


@pytest.mark.parametrize("mode", MODES, ids=["plain", "measured", "modelled"])
def test_receives_posted_before_the_shape_is_known_take_messages_in_their_order(mode, tmp_path):
    """With a buffer and without one; waited for in order, out of it, and with a recv between."""
    cases = [
        (taken, buffer)
        for taken in ((0, 1, 2, 3), (1, 3, 0, 2), ("recv", 0, 1, 2))
        for buffer in (True, None)
    ]

    def program(rank):
        group, got = rank.group(), {}
        for site, (taken, buffer) in enumerate(cases):
            if rank.index == 0:
                for i in range(4):
                    group.isend(torch.full((3,), i), 1, site=f"new {site}")
                continue
            handles = [
                group.irecv(buffer and torch.zeros(3, dtype=torch.int64), 0, site=f"new {site}")
                for _ in range(len(taken) - ("recv" in taken))
            ]
            for i in taken:
                came = group.recv(0, site=f"new {site}") if i == "recv" else handles[i].wait()
                got[f"{site} {i}"] = int(came[0])
        group.finish()
        return got

    run = launch(program, 2, directory=tmp_path / "run", **mode)
    assert {name: int(number) for name, number in run.result.items()} == {
        f"{site} {i}": 3 if i == "recv" else i
        for site, (taken, _) in enumerate(cases)
        for i in taken
    }


@pytest.mark.parametrize(
    "text, lost",
    [  # as gloo says it
        (
            (
                "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by"
                " peer [127.0.0.1]:35737."
            ),
            True,
        ),
        (
            (
                "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error"
                " [127.0.0.1]:11678: Connection reset by peer."
            ),
            True,
        ),
        (
            (
                "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out"
                " waiting 3000ms for recv operation to complete"
            ),
            True,
        ),
        ("Invalid scalar type", False),
        ("my own work timed out", False),
    ],
)
def test_what_a_lost_connection_says(text, lost):
    assert is_lost(RuntimeError(text)) == lost and not is_lost(ValueError(text))


@pytest.mark.parametrize("mode", MODES, ids=["plain", "measured", "modelled"])
def test_collectives_of_any_shape_and_dtype(mode, tmp_path):
    """7 rows on 3 ranks are parts of 3, 2 and 2; a list may have any shapes."""

    def program(rank):
        group, own = rank.group(), torch.tensor([float(rank.index)])
        group.barrier()
        reduced = [group.all_reduce(own.clone(), op) for op in REDUCED]
        assert [*map(float, reduced), float(group.broadcast(own, 2))] == [*REDUCED.values(), 2]
        whole = torch.arange(14.0).view(7, 2)
        part = group.reduce_scatter(whole * (rank.index + 1))
        assert torch.equal(part, (whole * 6).tensor_split(3)[rank.index]) and not part.requires_grad
        assert torch.equal(group.all_gather(part, torch.zeros(7, 2)), whole * 6)
        shapes = [(2, 3), (), (5,)]
        mine = group.reduce_scatter(
            [torch.full(shape, 1.0 + rank.index) for shape in shapes], "mean"
        )
        assert mine.shape == shapes[rank.index] and (mine == 2).all()
        room = [torch.zeros(shape) for shape in shapes]
        assert group.all_gather(mine, room) is room and [float(each.sum()) for each in room] == [
            12,
            2,
            10,
        ]
        for dtype in (torch.bool, torch.bfloat16, torch.complex128, torch.float8_e5m2, torch.uint8):
            gathered = group.all_gather(torch.tensor([[rank.index, 1]]).to(dtype))
            expected = torch.tensor([[r, 1] for r in range(3)]).to(dtype)
            assert gathered.dtype == dtype and torch.equal(
                gathered.view(torch.uint8), expected.view(torch.uint8)
            )
        return {f"numbers{rank.index}": group.all_gather(torch.tensor(rank.index))}

    result = launch(program, 3, directory=tmp_path / "run", **mode).result
    assert all(result[f"numbers{r}"].tolist() == [0, 1, 2] for r in range(3))


def nested(rank):
    with rank.span("outer"), rank.span("inner"):
        pass


@pytest.mark.parametrize(
    "wrong, told",
    [
        (nested, "Span inner begins inside span outer"),
        *(
            (
                lambda rank, peer=peer: (
                    None if rank.index else rank.group().isend(torch.zeros(1), peer)
                ),
                f"Rank 0 cannot exchange a message with rank {peer}: name another of the ranks 0"
                " to 1",
            )
            for peer in (-1, 2, 0)
        ),
        (
            lambda rank: rank.group().reduce_scatter(torch.tensor(1.0)),
            "reduce_scatter cannot cut a single number into 2 parts",
        ),
        (
            lambda rank: rank.group().reduce_scatter([torch.ones(1)]),
            "reduce_scatter got 1 tensors for 2 ranks: give one a rank",
        ),
        (
            lambda rank: rank.group().all_gather(torch.ones(2), torch.ones(3)),
            (
                r"Rank [01] gathers float32 of shape \(2,\) into a part that is float32 of shape"
                r" \([12],\)"
            ),
        ),
        (
            lambda rank: rank.group().all_gather(torch.ones(rank.index + 1)),
            (
                r"different collectives at one time: rank 0 all_gather of 2 parts, float32 of shape"
                r" \(1,\);"
            ),
        ),
    ],
)
def test_what_cannot_be_asked_of_a_rank_is_refused_in_a_sentence(wrong, told, tmp_path):
    with pytest.raises(RankFailed, match=told):
        launch(wrong, 2, directory=tmp_path / "run").wait()


@pytest.mark.parametrize("mode", MODES, ids=["plain", "measured", "modelled"])
@pytest.mark.parametrize("case", ["sender changes", "like", "buffer"])
def test_a_mismatch_is_a_sentence_that_names_both_ranks(mode, case, tmp_path):
    def program(rank):
        group = rank.group()
        if rank.index == 0:
            group.isend(torch.zeros(2, 3), 1, name="x", site="s")
            group.isend(
                torch.zeros(2, 4) if case == "sender changes" else torch.zeros(2, 3),
                1,
                name="x",
                site="s",
            )
            group.finish()
        elif case == "like":
            group.recv(0, name="x", site="s", like=(torch.float64, (2, 3)))
        else:
            group.recv(0, name="x", site="s")
            group.irecv(torch.zeros(7) if case == "buffer" else None, 0, name="x", site="s").wait()

    expected = {
        "sender changes": (
            r"Rank 0 failed: Impossible: Rank 0 sends rank 1 float32 of shape \(2, 4\) where it"
            r" sent "
            r"float32 of shape \(2, 3\) before \(site s\)"
        ),
        "like": (
            r"Rank 1 failed: Impossible: Rank 1 expects float64 of shape \(2, 3\) from rank 0,"
            r" which sends float32"
        ),
        "buffer": (
            r"Rank 1 expects float32 of shape \(7,\) from rank 0, which sends float32 of shape"
            r" \(2, 3\)"
        ),
    }
    with pytest.raises(RankFailed, match=expected[case]):
        launch(program, 2, directory=tmp_path / "run", **mode).wait()


# -- the modelled clock ----------------------------------------------------------------------------


def test_a_message_is_charged_its_real_bytes_where_it_has_a_price(tmp_path):
    """So that a prediction which prices other bytes than are sent differs."""
    names = [
        Action("F", 0, 0),
        Action("B", 0, 0),
        Message("stated", "grad", 9),
        Message("free", "grad", 0),
        "text",
    ]

    def program(rank):
        for name in names:
            (
                rank.group().isend(torch.zeros(5, dtype=torch.uint8), 1, name=name)
                if rank.index == 0
                else rank.group().recv(0, name=name)
            )

    run = launch(program, 2, cost=Cost({}, {"F": 3}), directory=tmp_path / "run")
    assert [(t.kind, t.name, t.bytes) for t in run.wait().transfers(0)] == [
        ("F", "0F0", 5),
        ("B", "0B0", 0),
        ("grad", "stated", 5),
        ("grad", "free", 0),
        ("message", "text", 5),
    ]
