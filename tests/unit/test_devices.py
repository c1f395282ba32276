"""Which device each rank gets, by what is there. No GPU is needed: the rule is a pure function."""

import pytest

from bigtrain_lab.core import Impossible
from bigtrain_lab.runtime.devices import GLOO, NCCL, Node, choose


@pytest.mark.parametrize("nodes, of, backend, why", [
    ([Node(2, 2)], ["cuda:0", "cuda:1"], NCCL, "one GPU a rank: NCCL"),
    ([Node(2, 8)], ["cuda:0", "cuda:1"], NCCL, "one GPU a rank"),
    ([Node(1, 1)], ["cuda:0"], NCCL, "one GPU a rank"),
    ([Node(4, 2)], ["cuda:0", "cuda:0", "cuda:1", "cuda:1"], GLOO, "4 ranks share 2 GPUs through gloo"),
    ([Node(3, 2)], ["cuda:0", "cuda:0", "cuda:1"], GLOO, "3 ranks share 2 GPUs"),
    ([Node(4, 1)], ["cuda:0"] * 4, GLOO, "4 ranks share 1 GPU through gloo"),
    ([Node(4, 0)], ["cpu"] * 4, GLOO, "CPU and gloo: no GPU is visible"),
    ([Node(2, 2), Node(2, 2)], ["cuda:0", "cuda:1"] * 2, NCCL, "one GPU a rank"),
    ([Node(2, 2), Node(2, 1)], ["cuda:0", "cuda:1", "cuda:0", "cuda:0"], GLOO, "2 ranks share 1 GPU"),
    ([Node(2, 2), Node(2, 0)], ["cpu"] * 4, GLOO, "no GPU is visible on node 1"),
])
def test_what_is_there_decides(nodes, of, backend, why):
    found = choose(nodes)
    assert (list(found.of), found.backend) == (of, backend) and why in found.why


def test_every_gpu_is_used_and_none_that_is_not_there():
    for ranks in range(1, 17):
        for gpus in range(1, 9):
            of = choose([Node(ranks, gpus)]).of
            numbers = [int(name.removeprefix("cuda:")) for name in of]
            assert len(of) == ranks and set(numbers) == set(range(min(ranks, gpus))) and numbers == sorted(numbers)
            loads = [numbers.count(gpu) for gpu in set(numbers)]
            assert max(loads) - min(loads) <= 1


def test_what_is_asked_for_is_done_or_refused():
    assert set(choose([Node(4, 4)], "cpu").of) == {"cpu"} and "as asked" in choose([Node(4, 4)], "cpu").why
    assert choose([Node(2, 2)], "cuda") == choose([Node(2, 2)], "auto")
    assert choose([Node(2, 2)], nccl=False).backend == GLOO and choose([Node(2, 2)], nccl=False).of == ("cuda:0", "cuda:1")
    with pytest.raises(Impossible, match="No GPU is visible: choose device cpu or auto"):
        choose([Node(2, 0)], "cuda")
    with pytest.raises(Impossible, match="No GPU is visible on node 1"):
        choose([Node(2, 2), Node(2, 0)], "cuda")
    with pytest.raises(Impossible, match="There is no device 'tpu': choose one of cpu, auto, cuda"):
        choose([Node(2, 2)], "tpu")
