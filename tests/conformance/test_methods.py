"""What every method owes, on every family of nets: a new method or family is found here by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest

from fedquilt.cover import Cover
from fedquilt.drive import site as driver
from fedquilt.drive.score import score
from fedquilt.drive.sim import Now, Round, Simulator, packed, unpacked
from fedquilt.drive.wire import decode_order, decode_reply, encode_order, encode_reply, order_size, reply_size
from fedquilt.guard import Rejection, admit
from fedquilt.methods import METHODS
from fedquilt.norm import NORMS
from fedquilt.store import flatten, restore
from fedquilt.types import Memory, Order, Reply

from ..guard.mutants import mutants
from ..laws.strategies import all_bits
from ..world import FAMILIES, play, small, world

ROUNDS = 3
MUTANTS = 1000  # of each method on each family


def pair(method: str, family: str) -> Any:
    """A method on a family; its tests run in one process, which plays it once."""
    return pytest.param(method, family, marks=pytest.mark.xdist_group(f"{method}-{family}"))


pairs = pytest.mark.parametrize(("method", "family"), [pair(m, f) for m in METHODS for f in FAMILIES])


@dataclass(frozen=True, eq=False)
class Played:
    """A short run, with all that was sent either way."""

    sim: Simulator
    now: Now
    half: Any  # the state after two rounds, as it is stored
    told: list[Round]
    sent: list[tuple[Order, Reply, bytes]]


def run(method: str, family: str) -> Played:
    """Two rounds, and from what is then to be stored a third."""
    sim = world(small(METHODS[method]), family)
    sent: list[tuple[Order, Reply, bytes]] = []

    def spy(reply: Reply, order: Order) -> bytes:
        data = encode_reply(reply, order)
        sent.append((order, reply, data))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "encode_reply", spy)
        now, told = play(sim, ROUNDS - 1)
        half = flatten(packed(now))
        now, last = play(sim, 1, now)
    return Played(sim, now, half, told + last, sent)


@cache
def played(method: str, family: str) -> Played:
    """The run that most tests look at; done once."""
    return run(method, family)


def memories(p: Played) -> dict[int, Memory]:
    return {i: p.sim.site.memories.load(i, v) for i, v in p.now.state.versions.items()}


def told(p: Played) -> list[Any]:
    return [(r.record, r.clients) for r in p.told]


def same_memory(a: Memory, b: Memory) -> bool:
    return all_bits(a.tensors) == all_bits(b.tensors) and a.facts == b.facts and a.spec == b.spec


@pairs
def test_a_run_is_repeatable_to_the_bit(method: str, family: str) -> None:
    a, b = played(method, family), run(method, family)
    assert all_bits(dict(a.now.state.params)) == all_bits(dict(b.now.state.params))
    assert told(a) == told(b) and [d for _, _, d in a.sent] == [d for _, _, d in b.sent]
    first, second = memories(a), memories(b)
    assert first.keys() == second.keys() and all(same_memory(first[i], second[i]) for i in first)


@pairs
def test_every_client_really_trains_in_every_round(method: str, family: str) -> None:
    """With one local step some terms are blind: there are three at least."""
    for r in played(method, family).told:
        assert r.record["outcomes"] == {"accepted": 5}, [c["reason"] for c in r.clients]
        assert all(c["steps"] >= 3 and c["flops"] > 0 for c in r.clients)


@pairs
def test_the_order_of_replies_does_not_matter(method: str, family: str) -> None:
    p = played(method, family)
    last = [replace(r, order=o, seconds=1.0 + o.client) for o, r, _ in p.sent if o.round == ROUNDS - 1]
    before = restore(*flatten(unpacked(restore(*p.half)).state.__dict__))
    state = unpacked(restore(*p.half)).state
    assert before["round"] == state.round == ROUNDS - 1
    forth = p.sim.method.step(state, p.sim.fleet, last)
    back = p.sim.method.step(state, p.sim.fleet, last[::-1])
    assert all_bits(dict(forth.params)) == all_bits(dict(back.params))
    assert repr(flatten(forth.notes)[0]) == repr(flatten(back.notes)[0])


@pairs
def test_a_run_goes_on_from_its_stored_state(method: str, family: str) -> None:
    p = played(method, family)
    now, last = play(p.sim, 1, unpacked(restore(*p.half)))
    assert all_bits(dict(now.state.params)) == all_bits(dict(p.now.state.params))
    assert [(r.record, r.clients) for r in last] == told(p)[-1:]


@pairs
def test_what_is_metered_is_what_is_encoded(method: str, family: str) -> None:
    p = played(method, family)
    metered = {(c["round"] - 1, c["client"]): (c["down"], c["up"]) for r in p.told for c in r.clients}
    assert len(metered) == len(p.sent)
    for order, reply, data in p.sent:
        assert metered[order.round, order.client] == (len(encode_order(order)), len(data))
        assert (order_size(order), reply_size(reply, order)) == metered[order.round, order.client]


@pairs
def test_orders_and_replies_survive_the_wire(method: str, family: str) -> None:
    p = played(method, family)
    shapes = {k: tuple(v.shape) for k, v in p.now.state.params.items()}
    for order, reply, data in p.sent:
        again = decode_order(encode_order(order), shapes)
        assert encode_order(again) == encode_order(order) and all_bits(again.params) == all_bits(order.params)
        back = decode_reply(data, again)
        assert back.cover == reply.cover and all_bits(back.params) == all_bits(reply.params)
        assert encode_reply(back, again) == data


@pairs
def test_memory_never_leaves_the_client(method: str, family: str) -> None:
    """No tensor of a memory, but what the reply itself speaks about, is among the bytes of a message."""
    p = played(method, family)
    last = {o.client: (o, r, d) for o, r, d in p.sent if o.round == ROUNDS - 1}
    for client, memory in memories(p).items():
        order, reply, data = last[client]
        spoken = {raw(t) for t in (*reply.params.values(), *order.params.values(), *reply.extra.values())}
        for name, t in memory.tensors.items():
            if t.numel() * t.element_size() >= 16 and bool((t != t.flatten()[0]).any()) and raw(t) not in spoken:
                assert raw(t) not in data and raw(t) not in encode_order(order), name


def raw(t: Any) -> bytes:
    return bytes(t.detach().contiguous().flatten().view(dtype=__import__("torch").uint8).numpy().tobytes())


@pairs
def test_every_reply_passes_the_guard_and_no_mutant_does(method: str, family: str) -> None:
    p = played(method, family)
    rng = np.random.default_rng(sum(map(ord, method + family)))
    for order, _, data in p.sent:
        assert not isinstance(admit(data, order, order.client), Rejection)
    made = ((o, mutant) for o, reply, data in cycle(p.sent) for mutant in mutants(data, reply, o, rng))
    for order, (name, bad, codes) in islice(made, MUTANTS):
        verdict = admit(bad, order, order.client)
        assert isinstance(verdict, Rejection), name
        assert verdict.code in codes, (name, verdict)


@pairs
def test_a_reply_speaks_only_of_what_was_granted(method: str, family: str) -> None:
    for order, reply, data in played(method, family).sent:
        assert reply.cover <= order.grant.outer
        assert order.grant.outer <= Cover.whole({k: s.shape for k, s in order.grant.outer.spans.items()})
        assert reply.metrics.keys() <= order.grant.metrics and len(data) <= order.grant.nbytes


@pairs
def test_scoring_changes_nothing(method: str, family: str) -> None:
    p = played(method, family)
    before = all_bits(dict(p.now.state.params)), {i: all_bits(m.tensors) for i, m in memories(p).items()}
    first = score(p.sim, p.now.state, range(5))
    assert first == score(p.sim, p.now.state, range(5)) and len(first) == 12
    assert before == (all_bits(dict(p.now.state.params)), {i: all_bits(m.tensors) for i, m in memories(p).items()})


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_may_override_the_policy_of_statistics(method: str, norm: str) -> None:
    """Every method takes every policy, or says in words why not."""
    try:
        sim = world(replace(small(METHODS[method]), norm=norm))
        sim.method.suits(sim.model)
    except ValueError as e:
        assert norm == "per-width" and "choose another norm" in str(e)
        return
    now, told = play(sim, 2)
    assert all(r.record["outcomes"] == {"accepted": 5} for r in told), [c["reason"] for c in told[-1].clients]
    assert len(score(sim, now.state, range(5))) == 12


@pytest.mark.parametrize("method", METHODS)
def test_mutated_replies_never_reach_the_mean(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round in which two clients' replies were tampered with is a round in which they did not answer."""
    rng = np.random.default_rng(1)

    def tampered(reply: Reply, order: Order) -> bytes:
        data = encode_reply(reply, order)
        if order.client not in (1, 3):
            return data
        every = [bad for _, bad, _ in mutants(data, reply, order, rng)]
        return every[int(rng.integers(len(every)))]

    sim = world(small(METHODS[method]))
    honest, _ = play(world(small(METHODS[method])), 1)
    monkeypatch.setattr(driver, "encode_reply", tampered)
    now, told = play(sim, 1)
    assert told[0].record["merged"] == [0, 2, 4]
    orders = sim.method.plan(sim.begin().state, sim.fleet, sim.model, sim.key, (), sim.run)
    replies = []
    for order in orders:
        if order.client in (0, 2, 4):
            monkeypatch.undo()
            [done] = sim.site.work([order])
            replies.append(decode_reply(done.reply or b"", order))
    alone = sim.method.step(sim.begin().state, sim.fleet, replies)
    assert all_bits(dict(now.state.params)) == all_bits(dict(alone.params))
    assert honest.state.versions.keys() == {0, 1, 2, 3, 4} and now.state.versions.keys() == {0, 2, 4}
