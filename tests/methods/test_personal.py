"""Models of one's own: closed forms on a quadratic, what is left when nothing or everything is shared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedquilt.cover import Params
from fedquilt.drive.sim import Now, Simulator
from fedquilt.fit import SGD
from fedquilt.methods import METHODS
from fedquilt.parts.local import Train, section
from fedquilt.parts.meta import Moreau
from fedquilt.parts.personal import Mixture, Twice
from fedquilt.types import Memory

from ..engine.tiny import drive
from ..laws.strategies import all_bits
from ..spikes.test_perfedavg_hessian import matrix, quadratic
from ..world import play, small, world

some = pytest.mark.parametrize("family", ["cnn", "resnet-group", "lstm-tied", "mlp-regression"])


def kept(sim: Simulator, now: Now, client: int, name: str) -> Params:
    return section(sim.site.memories.load(client, now.state.versions[client]), name)  # type: ignore[attr-defined]


def descent(x: torch.Tensor, y: torch.Tensor) -> Any:
    """The gradient of the quadratic loss, as a function of the matrix."""
    return lambda w: (x @ w.T - y).T @ x / len(x)


def test_pfedmes_steps_are_the_closed_form() -> None:
    """Two outer steps of two inner ones, each on all samples; the personal model goes on from where it was."""
    run, o, c, x, y = quadratic()
    reply, memory = drive(run, Moreau(15.0, 0.01, 0.05, steps=2, inner=2, batch=12)(o, c))
    grad, w = descent(x, y), matrix(o.params)
    own = w
    for _ in range(2):
        for _ in range(2):
            own = own - 0.05 * (grad(own) + 15.0 * (own - w))
        w = w - 0.01 * 15.0 * (w - own)
    assert torch.allclose(matrix(reply.params), w, atol=1e-12)
    assert torch.allclose(matrix(section(memory, "own")), own, atol=1e-12)


def test_dittos_two_models_are_the_closed_form() -> None:
    """The personal one starts from its own last values and is pulled to what was received, not to what that became."""
    run, o, c, x, y = quadratic()
    train = Train(SGD(0.05), epochs=2, batch=12)
    before = {k: v + 1.0 for k, v in o.params.items()}
    c = replace(c, memory=Memory({f"own/{k}": v for k, v in before.items()}))
    reply, memory = drive(run, Twice(train, train, lam=3.0)(o, c))
    grad, sent = descent(x, y), matrix(o.params)
    w, v = sent, matrix(before)
    for _ in range(2):
        w, v = w - 0.05 * grad(w), v - 0.05 * (grad(v) + 3.0 * (v - sent))
    assert torch.allclose(matrix(reply.params), w, atol=1e-12)
    assert torch.allclose(matrix(section(memory, "own")), v, atol=1e-12)


@pytest.mark.parametrize("adaptive", [True, False])
def test_apfls_three_unknowns_are_the_closed_form(adaptive: bool) -> None:
    """The mixture's gradient, times alpha, moves v; along v - w it moves alpha; all from the values before the step."""
    run, o, c, x, y = quadratic()
    before = {k: v + 0.5 for k, v in o.params.items()}
    memory = Memory({**{f"own/{k}": v for k, v in before.items()}, "alpha": torch.tensor(0.3, dtype=torch.float64)})
    train = Train(SGD(0.05), epochs=2, batch=12)
    reply, memory = drive(run, Mixture(train, 0.3, adaptive)(o, replace(c, memory=memory)))
    grad, w, v, alpha = descent(x, y), matrix(o.params), matrix(before), torch.tensor(0.3, dtype=torch.float64)
    for _ in range(2):
        g = grad(alpha * v + (1 - alpha) * w)
        turn = (g * (v - w)).sum() if adaptive else 0.0
        w, v, alpha = w - 0.05 * grad(w), v - 0.05 * alpha * g, alpha - 0.05 * turn
    assert torch.allclose(matrix(reply.params), w, atol=1e-12)
    assert torch.allclose(matrix(section(memory, "own")), v, atol=1e-12)
    assert float(memory.tensors["alpha"]) == pytest.approx(min(max(float(alpha), 0.0), 1.0), abs=1e-9)


@some
def test_where_nothing_is_shared_everybody_learns_alone(family: str) -> None:
    """FedPer without a base: each client's model is what `local` makes of it, to the bit."""
    alone, apart = (
        world(replace(small(METHODS[name], **given), norm="personal"), family, widths=(1.0,))
        for name, given in (("local", {}), ("fedper", {"head": ("*",)}))
    )
    one, two = play(alone, 2)[0], play(apart, 2)[0]
    for i in range(5):
        mine = kept(apart, two, i, "model")
        assert mine and all_bits(mine) == all_bits(kept(alone, one, i, "model"))
        assert any(not torch.equal(v, apart.model.params()[k]) for k, v in mine.items())
