"""Each method, with its difference switched off, is its parent: bit for bit, through the method's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedquilt import step
from fedquilt.cover import count_units
from fedquilt.drive.sim import Now, Simulator
from fedquilt.methods import METHODS
from fedquilt.parts.schedule import Buffered, Sync
from fedquilt.parts.send import Ordered, Random
from fedquilt.parts.terms import Proximal

from ..laws.strategies import all_bits
from ..world import FAMILIES, play, replace, small, world

ROUNDS = 3
families = pytest.mark.parametrize("family", FAMILIES)


def bits_of(now: Now) -> dict[str, Any]:
    return all_bits(dict(now.state.params))


def counted(patch: pytest.MonkeyPatch, thing: type) -> list[int]:
    """Counts how often an object of the class is called."""
    calls = [0]
    real = thing.__call__  # type: ignore[operator]

    def call(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        return real(*args, **more)

    patch.setattr(thing, "__call__", call)
    return calls


def end(name: str, family: str, tiers: tuple[float, ...] = (1.0,), norm: str = "shared", **given: Any) -> Now:
    method = replace(small(METHODS[name], **given), norm=norm)
    return play(world(method, family, widths=tiers), ROUNDS)[0]


@families
def test_fedprox_without_its_term_is_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Proximal)
    off, near = end("fedprox", family, mu=0.0), end("fedprox", family, mu=1e-3)
    assert calls[0] >= 2 * ROUNDS * 5 * 3, "the term is evaluated at each step"
    assert bits_of(off) == bits_of(end("fedavg", family)) != bits_of(near)


@families
def test_fedspu_at_width_one_is_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is active, so the merge into the personal model takes all of what arrives."""
    calls = counted(monkeypatch, Random)
    full = end("fedspu", family, norm="frozen")
    assert calls[0] == ROUNDS * 5
    near = end("fedspu", family, (0.8,), norm="frozen")
    assert bits_of(full) == bits_of(end("fedavg", family)) != bits_of(near)


@families
def test_heterofl_with_its_switches_off_is_uniform_fedavg(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, Ordered)
    off = {"masked": False, "scaler": False, "posthoc": False}
    full = end("heterofl", family, **off)
    assert calls[0] == ROUNDS * 5
    near = end("heterofl", family, (0.8,), **off)
    assert bits_of(full) == bits_of(end("fedavg", family, weight="uniform")) != bits_of(near)


@families
def test_local_is_fedavg_of_one_client(family: str) -> None:
    """A client alone in its federation trains its own model; alone, nobody else's enters fedavg's."""

    def alone(name: str) -> Simulator:
        return world(small(METHODS[name]), family, clients=1, widths=(1.0,))

    mine = alone("local")
    now, _ = play(mine, ROUNDS)
    model = {k[6:]: v for k, v in mine.site.memories.load(0, now.state.versions[0]).tensors.items()}
    assert bits_of(now) == bits_of(Now(mine.begin().state)), "nothing is sent, so nothing is merged"
    assert all_bits(model) == bits_of(play(alone("fedavg"), ROUNDS)[0])


def test_a_buffer_of_the_whole_cohort_is_synchronous() -> None:
    sync = small(METHODS["fedavg"])
    buffered = replace(sync, schedule=Buffered(busy=5, k=5))
    a, b = (play(world(m), ROUNDS)[0] for m in (sync, buffered))
    assert bits_of(a) == bits_of(b)
    early = play(world(replace(sync, schedule=Buffered(busy=5, k=2))), ROUNDS)[0]
    assert bits_of(early) != bits_of(a)


def test_finetuning_changes_what_is_served_but_not_what_is_merged() -> None:
    from fedquilt.drive.score import score

    plain, tuned = (world(small(METHODS["fedavg"], finetune=n)) for n in (0, 2))
    a, b = play(plain, ROUNDS)[0], play(tuned, ROUNDS)[0]
    assert bits_of(a) == bits_of(b)
    first, second = (score(s, n.state, range(5), ("test",)) for s, n in ((plain, a), (tuned, b)))
    assert [r["loss"] for r in first[:5]] != [r["loss"] for r in second[:5]]
    assert first[5] == second[5], "the global model is the same"


# ---- a sub-model is smaller, physically
def recorded_shapes(patch: pytest.MonkeyPatch) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of the tensors that the net runs on in each step."""
    seen: list[dict[str, tuple[int, ...]]] = []
    real: Callable[..., Any] = step.call

    def call(net: Any, tensors: Any, *rest: Any) -> Any:
        seen.append({k: tuple(v.shape) for k, v in tensors.items()})
        return real(net, tensors, *rest)

    patch.setattr(step, "call", call)
    return seen


def test_the_smallest_tier_runs_the_slimmer_net_and_pays_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The net of 16 units a layer at width 0.2: three units a layer, and the FLOPs of exactly that net."""
    seen = recorded_shapes(monkeypatch)
    sim = world(replace(small(METHODS["heterofl"]), schedule=Sync(1.0)), "cnn", clients=1, widths=(0.2,))
    _, told = play(sim, 1)
    k = count_units(0.2, 16)
    assert k == 3
    want = {
        "conv1.conv.weight": (k, 1, 3, 3),
        "conv2.conv.weight": (k, k, 3, 3),
        "conv2.norm.weight": (k,),
        "dense1.linear.weight": (k, k * 4),
        "head.weight": (4, k),
        "head.bias": (4,),
    }
    assert seen and all(shapes[name] == shape for shapes in seen for name, shape in want.items())
    forward = 2 * 9 * (k * 64 + k * k * 16) + 2 * (k * 4 * k + k * 4)  # 8x8, then 4x4 positions
    first = 2 * 9 * k * 64  # the input needs no gradient
    row = told[0].clients[0]
    statistics = row["samples"] * forward  # of the final weights, taken over the data at the end
    assert row["products"] == row["samples"] * (3 * forward - first) + statistics
    assert row["products"] < row["flops"] < 2 * row["products"], "norms, activations and the loss beside them"
    whole = play(world(small(METHODS["fedavg"]), "cnn", clients=1, widths=(0.2,)), 1)[1][0].clients[0]
    assert row["flops"] < 0.1 * whole["flops"] and row["up"] < 0.2 * whole["up"]


def test_fedspu_trains_the_whole_net_and_moves_only_what_was_sent() -> None:
    """Exact freezing under momentum: outside the active units not one bit of the personal model moves."""
    sim = world(small(METHODS["fedspu"], momentum=0.9), "cnn", widths=(0.4,))
    start = sim.begin().state
    orders = sim.method.plan(start, sim.fleet, sim.model, sim.key, (), sim.run)
    now, _ = play(sim, 1)
    for order in orders:
        own = {k[6:]: v for k, v in sim.site.memories.load(order.client, 1).tensors.items()}
        moved = 0
        for name, t in sim.model.params().items():
            inside = order.cover[name].dense() if name in order.cover else torch.zeros(t.shape, dtype=torch.bool)
            assert torch.equal(own[name][~inside], t[~inside]), name
            moved += int((own[name][inside] != t[inside]).sum())
        assert moved > 0.5 * order.cover.numel
    assert now.state.round == 1
