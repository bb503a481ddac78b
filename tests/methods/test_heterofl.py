"""HeteroFL's three switches, each by itself: what it does, and that it does nothing where it has nothing to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedquilt.drive.sim import Now, Simulator
from fedquilt.methods import METHODS
from fedquilt.parts.terms import Scaler, SeenClasses
from fedquilt.types import Reply

from ..laws.strategies import all_bits
from ..world import play, small, world

OFF = {"masked": False, "scaler": False, "posthoc": False}


def simulator(width: float = 0.5, **on: bool) -> Simulator:
    return world(small(METHODS["heterofl"], **{**OFF, **on}), "cnn", widths=(width,))


def end(width: float = 0.5, **on: bool) -> tuple[Simulator, Now]:
    sim = simulator(width, **on)
    return sim, play(sim, 2)[0]


def bits(now: Now) -> dict[str, Any]:
    return all_bits(dict(now.state.params))


@pytest.mark.parametrize("switch", ["scaler", "posthoc"])
def test_each_of_two_switches_by_itself_changes_the_run(switch: str) -> None:
    plain, changed = (bits(end(**given)[1]) for given in ({}, {switch: True}))
    assert plain != changed


def test_the_masked_loss_is_about_the_classes_that_a_client_holds() -> None:
    """A client that lacks a class says nothing of that class's row of the head; one that has all is as without."""
    runs = {}
    for masked in (False, True):
        sim = simulator(masked=masked)
        shards = sim.site.shares
        labels = {i: shards.labels(i, 0) for i in range(5)}
        assert all(len(v) == 4 for v in labels.values()), "everybody has all four classes"
        runs[masked] = bits(play(sim, 2)[0])
    assert runs[False] == runs[True]
    sim = simulator(masked=True)
    some = torch.tensor([0, 2, 3])
    client = sim.site.client(order := sim.method.order(sim.begin().state, 0, sim.fleet, sim.model, sim.key), "work")
    vars(client)["labels"] = some
    reply = work(sim, order, client)
    head = {k: reply.cover[k] for k in reply.cover if k.startswith("head.")}
    assert set(head) == {"head.weight", "head.bias"}
    for span in head.values():
        assert span.axes is not None and span.axes[0] is not None and torch.equal(span.axes[0], some)
    assert all(reply.cover[k].same(order.cover[k]) for k in reply.cover if k not in head)


def work(sim: Simulator, order: Any, client: Any) -> Reply:
    working = sim.method.local(order, client)
    try:
        request = next(working)
        assert isinstance(request.loss, SeenClasses)
        while True:
            request = working.send(sim.site.engine.answer(request))
    except StopIteration as end:
        reply: Reply = end.value[0]
        return reply


def test_the_scaler_divides_what_hidden_layers_say_by_the_width_and_is_nothing_at_width_one() -> None:
    assert bits(end(1.0)[1]) == bits(end(1.0, scaler=True)[1])
    sim = simulator()
    view, p = Scaler.of(sim.model, 0.5), sim.model.params()
    held, fixed = view(p, {}, {})
    scaled = {k for k in p if not torch.equal(held[k], p[k])}
    assert not fixed and {"conv1.conv.weight", "conv2.conv.weight", "dense1.linear.weight"} <= scaled
    assert all(torch.equal(held[k], 2 * p[k]) for k in scaled)
    assert not any(k.startswith("head.") or ".norm." in k for k in scaled), "neither the outputs nor the norms"


def test_post_hoc_statistics_are_nobodys_but_the_clients_own() -> None:
    for posthoc in (False, True):
        sim, now = end(posthoc=posthoc)
        moved = {k for k in sim.model.statistics if not torch.equal(now.state.params[k], sim.model.params()[k])}
        assert moved == (set() if posthoc else sim.model.statistics)
        order = sim.method.order(now.state, 0, sim.fleet, sim.model, sim.key)
        assert order.norm == ("post-hoc" if posthoc else "shared")
        assert bool(sim.model.statistics & set(order.cover)) != posthoc
