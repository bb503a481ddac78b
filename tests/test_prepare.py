"""What a run is made of is tried before any work: a net that cannot take part is refused in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedquilt.cover import Axis
from fedquilt.model import Model, model
from fedquilt.prepare import prepare
from fedquilt.run import Run
from fedquilt.run import run as start
from fedquilt.schema import BadSetting


class Net(nn.Module):
    """Two dense layers and a buffer of somebody's own."""

    def __init__(self, buffer: Tensor, kept: bool = True, outputs: int = 10) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 8), nn.Linear(8, outputs)
        self.register_buffer("own", buffer, persistent=kept)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.hidden(x.flatten(1)).relu())
        return out


def own(*given: object) -> Model:
    u = Axis("u")
    return model(Net(*given), {"hidden.weight": (u, None), "hidden.bias": (u,), "head.weight": (None, u)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: own(torch.tensor([float("-inf")])), "the model's tensor own holds NaN or infinity"),
        (lambda: own(torch.tensor([float("nan")])), "register it as a buffer with persistent=False"),
        (lambda: own(torch.zeros(2, dtype=torch.complex64)), "the model's tensor own is of torch.complex64"),
        (lambda: own(torch.zeros(1), True, 3), "does not take the samples of digits"),
    ],
)
def test_a_net_of_which_no_message_could_speak_is_refused(make: Callable[[], Model], told: str) -> None:
    with pytest.raises(BadSetting, match=told):
        prepare(Run(model=make()))


@pytest.mark.parametrize(
    "buffer",
    [torch.tensor([3]), torch.tensor([True, False]), torch.zeros(0), torch.tensor(0.5), torch.zeros(2).bfloat16()],
)
def test_a_net_with_buffers_of_any_kind_runs(buffer: Tensor) -> None:
    settings = {"name": "fedspu", "fraction": 1.0, "epochs": 1}
    done = start(Run(model=own(buffer), method=settings, clients=3, rounds=1))
    assert done.figures()["outcomes"] == {"accepted": 3}
    assert torch.equal(done.params["own"], buffer) and done.params["own"].dtype == buffer.dtype
    hidden = start(Run(model=own(torch.tensor([float("inf")]), False), method=settings, clients=3, rounds=1))
    assert hidden.figures()["outcomes"] == {"accepted": 3} and "own" not in hidden.params


@pytest.mark.parametrize("name", ["hermes", "mpfl"])
def test_statistics_per_width_are_refused_where_clients_choose_their_own_units(name: str) -> None:
    with pytest.raises(BadSetting, match=f"clients of {name} choose units of their own.*choose another norm"):
        prepare(Run(method=name, model="cnn:conv=4,4", norm="per-width"))
    prepare(Run(method=name, model="cnn:conv=4,4:norm=none", norm="per-width"))  # a net without statistics has none
