"""DynamicLossScaler follows torch.amp.GradScaler step for step, and refuses what cannot be
meant."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from bigtrain_lab.core import Impossible
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler

GOOD = st.floats(-1e6, 1e6, width=32)
PARAMETERS = 3  # the first optimizer has two, the second one


@st.composite
def steps(draw):
    """A step: for each parameter None or two gradient values, whether each optimizer is unscaled by
    hand, which take part."""
    value = (
        GOOD
        if draw(st.integers(0, 3))
        else st.one_of(
            GOOD,
            st.sampled_from(
                [0.0, 1.0, -3.5, 1e-30, 6e-8, 65504.0, 1e30, math.inf, -math.inf, math.nan]
            ),
        )
    )
    gradients = [
        draw(st.one_of(st.none(), st.lists(value, min_size=2, max_size=2)))
        for _ in range(PARAMETERS)
    ]
    if gradients[0] is gradients[1] is None:
        gradients[0] = [1.0, 2.0]  # torch refuses an optimizer without a single gradient
    return (
        gradients,
        draw(st.booleans()),
        draw(st.booleans()),
        gradients[2] is not None and draw(st.booleans()),
    )


class Training:
    """Two optimizers under one scaler, fed with gradients as a scaled backward would leave them."""

    def __init__(self, scaler):
        self.scaler = scaler
        self.parameters = [torch.nn.Parameter(torch.tensor([0.5, -2.0])) for _ in range(PARAMETERS)]
        self.first = torch.optim.Adam(self.parameters[:2], lr=0.1)
        self.second = torch.optim.SGD(self.parameters[2:], lr=0.1, momentum=0.9)

    def step(self, step):
        gradients, by_hand, by_hand_too, second = step
        scale = self.scaler.scale(torch.ones(()))
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.grad = None if gradient is None else torch.tensor(gradient) * scale
        if by_hand:
            self.scaler.unscale_(self.first)
            torch.nn.utils.clip_grad_norm_(self.parameters[:2], 1.0)
        if by_hand_too and second:
            self.scaler.unscale_(self.second)
        before = [p.detach().clone() for p in self.parameters]
        self.scaler.step(self.first)
        if second:
            self.scaler.step(self.second)
        self.scaler.update()
        return [torch.equal(b, p) for b, p in zip(before, self.parameters)]

    def state(self):
        moments = [
            v
            for o in (self.first, self.second)
            for s in o.state.values()
            for v in s.values()
            if isinstance(v, torch.Tensor)
        ]
        return self.scaler.get_scale(), self.scaler.state_dict(), [*self.parameters, *moments]


def same(one, other):
    assert one[:2] == other[:2]
    assert all(
        torch.equal(a.view(torch.int32), b.view(torch.int32))
        for a, b in zip(one[2], other[2], strict=True)
    )


def two_scalers(growth, backoff, interval, scale):
    options = {
        "init_scale": scale,
        "growth_factor": growth,
        "backoff_factor": backoff,
        "growth_interval": interval,
    }
    return Training(DynamicLossScaler(**options)), Training(torch.amp.GradScaler("cpu", **options))


@settings(
    max_examples=1000,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(steps(), min_size=1, max_size=6),
    st.sampled_from([2.0, 1.7, 1e20]),
    st.sampled_from([0.5, 0.3]),
    st.integers(1, 4),
    st.sampled_from([65536.0, 1.0, 3.3, 2.0**100]),
)
@pytest.mark.slow
def test_step_for_step_torch_s_scaler(sequence, growth, backoff, interval, scale):
    ours, torchs = two_scalers(growth, backoff, interval, scale)
    for step in sequence:
        assert ours.step(step) == torchs.step(step)
        same(ours.state(), torchs.state())


def test_state_goes_to_torch_and_back_and_resumes_exactly():
    step = ([[1e-3, 2.0], [4.0, 1e-9], [1.0, 1.0]], True, False, True)
    ours, torchs = two_scalers(2.0, 0.5, 4, 1024.0)
    for _ in range(3):
        ours.step(step), torchs.step(step)
    resumed = DynamicLossScaler()
    resumed.load_state_dict(torchs.scaler.state_dict())
    torch_resumed = torch.amp.GradScaler("cpu")
    torch_resumed.load_state_dict(ours.scaler.state_dict())
    assert resumed.state_dict() == ours.scaler.state_dict() == torch_resumed.state_dict()
    ours.scaler, torchs.scaler = resumed, torch_resumed
    ours.step(step), torchs.step(step)
    same(ours.state(), torchs.state())
    assert resumed.get_scale() == 2048  # the fourth good step, counted across the save


def test_sparse_gradients_whose_rows_repeat():
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer, scaler = (
        torch.optim.SGD(table.parameters(), lr=1.0),
        DynamicLossScaler(init_scale=4.0),
    )
    with torch.no_grad():
        table.weight.zero_()
    scaler.scale(table(torch.tensor([1, 1, 3])).sum()).backward()
    scaler.step(optimizer)
    assert table.weight.tolist() == [[0, 0], [-2, -2], [0, 0], [-1, -1], [0, 0]]
    scaler.update(), optimizer.zero_grad()
    (table(torch.tensor([2, 2])) * 3e38).sum().backward()  # each row is finite, their sum is not
    scaler.step(optimizer)
    assert scaler.skips(optimizer) and not table.weight[2].any()


def test_several_losses_and_losses_in_half():
    losses = torch.tensor(1.0), torch.tensor(3.0, dtype=torch.float16)
    for several in ([*losses], iter(losses)):
        one, other = DynamicLossScaler(init_scale=2.0**16).scale(several)
        assert one.item() == 65536 and other.item() == 3 * 65536 and other.dtype == torch.float32


def with_gradient(value, dtype=torch.float32):
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    parameter.grad = torch.full_like(parameter, value)
    return parameter, torch.optim.SGD([parameter], lr=1.0)


def test_switched_off_it_is_torch_s_switched_off():
    found = []
    for scaler in (DynamicLossScaler(enabled=False), torch.amp.GradScaler("cpu", enabled=False)):
        parameter, optimizer = with_gradient(math.inf, torch.float16)
        loss = torch.tensor(3.0, dtype=torch.float64)
        scaler.unscale_(optimizer)
        scaler.step(optimizer, lambda: None)
        scaler.update()
        scaler.load_state_dict({})
        found.append(
            (
                scaler.scale(loss) is loss,
                parameter.tolist(),
                scaler.get_scale(),
                scaler.state_dict(),
                scaler.is_enabled(),
            )
        )
    assert (
        found == [(True, [-math.inf, -math.inf], 1.0, {}, False)] * 2
        and DynamicLossScaler().is_enabled()
    )


@pytest.mark.parametrize(
    "act, sentence",
    [
        (lambda s, o: s.step(o, lambda: None), "given a closure"),
        (lambda s, o: s.step(o, closure=lambda: None), "given a closure"),
        (lambda s, o: DynamicLossScaler(1e-50), "that float32 holds"),
        (lambda s, o: DynamicLossScaler(1e39), "that float32 holds"),
        (lambda s, o: DynamicLossScaler(math.nan), "scales nothing"),
        (lambda s, o: DynamicLossScaler(growth_interval=2.5), "whole number of steps"),
        (lambda s, o: DynamicLossScaler(growth_factor=math.nan), "factor above 1"),
        (lambda s, o: s.update(0), "scales nothing"),
        (lambda s, o: s.update(-1.0), "scales nothing"),
        (lambda s, o: s.update(math.nan), "scales nothing"),
        (lambda s, o: DynamicLossScaler(growth_factor=0.5), "factor above 1"),
        (lambda s, o: DynamicLossScaler(backoff_factor=2.0), "between 0 and 1"),
        (lambda s, o: DynamicLossScaler(growth_interval=0), "at least 1 step"),
        (
            lambda s, o: s.load_state_dict(DynamicLossScaler().state_dict() | {"scale": 0.0}),
            "scales nothing",
        ),
        (lambda s, o: (s.unscale_(o), s.unscale_(o)), "second division"),
        (lambda s, o: (s.step(o), s.unscale_(o)), "second division"),
        (lambda s, o: (s.step(o), s.step(o)), "call update"),
        (lambda s, o: s.update(), "nothing was learnt"),
        (
            lambda s, o: (o.zero_grad(), s.step(o)),
            "None of the optimizer's parameters has a gradient",
        ),
        (lambda s, o: s.scale(torch.ones((), dtype=torch.float64)), "The loss is float64"),
        (lambda s, o: s.step(with_gradient(1.0, torch.float64)[1]), "A gradient is float64"),
        (lambda s, o: s.step(with_gradient(1.0, torch.float16)[1]), "Keep float32 master weights"),
        (lambda s, o: DynamicLossScaler(init_scale=0), "positive number"),
        (lambda s, o: DynamicLossScaler(growth_factor=1.0), "factor above 1"),
        (lambda s, o: DynamicLossScaler(backoff_factor=1.0), "between 0 and 1"),
        (lambda s, o: DynamicLossScaler(growth_interval=0), "at least 1 step"),
        (  # torch would divide the gradients twice
            lambda s, o: (s.step(o), s.step(torch.optim.SGD(o.param_groups[0]["params"], lr=1.0))),
            "Two optimizers hold one parameter",
        ),
        (lambda s, o: DynamicLossScaler().step(o), "No loss was scaled yet"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(act, sentence):
    _, optimizer = with_gradient(1.0)
    with pytest.raises(Impossible, match=sentence):
        scaler = DynamicLossScaler()
        scaler.scale(torch.ones(()))
        act(scaler, optimizer)
