"""When a round ends: on the virtual clock, from what each client's device took."""

from __future__ import annotations

import math
from hashlib import sha256
from typing import Any

import pytest

from fedquilt.drive import site as driver
from fedquilt.drive.rounds import Now, Round
from fedquilt.drive.sim import Simulator
from fedquilt.drive.wire import encode_reply
from fedquilt.fleet import Device, Fleet
from fedquilt.methods import METHODS
from fedquilt.parts.schedule import Buffered, Deadline, Sync
from fedquilt.types import Order, Reply, Schedule

from ..laws.strategies import all_bits
from ..world import play, replace, small, world

SPEEDS = {i: 1e7 / (1 + i) for i in range(5)}  # client 4 takes five times as long as client 0
FLEET = Fleet({i: Device(flops=f, down=1e12, up=1e12) for i, f in SPEEDS.items()}, dict.fromkeys(SPEEDS, 24))


def simulator(schedule: Schedule) -> Simulator:
    return world(replace(small(METHODS["fedavg"]), schedule=schedule), "mlp", fleet=FLEET)


def bits(now: Now) -> Any:
    return all_bits(dict(now.state.params))


@pytest.fixture(scope="module")
def seconds() -> dict[int, float]:
    """What a round takes each client."""
    (told,) = play(simulator(Sync(1.0)), 1)[1]
    found = {c["client"]: c["seconds"] for c in told.clients}
    assert [found[i] / found[0] for i in found] == pytest.approx([1, 2, 3, 4, 5], rel=1e-3)
    return found


def outcomes(told: Round) -> dict[int, str]:
    return {c["client"]: c["outcome"] for c in told.clients}


def test_a_synchronous_round_takes_as_long_as_its_slowest(seconds: dict[int, float]) -> None:
    now, told = play(simulator(Sync(1.0)), 3)
    assert [r.record["clock"] for r in told] == pytest.approx([max(seconds.values()) * n for n in (1, 2, 3)])
    assert all(r.record["merged"] == [0, 1, 2, 3, 4] for r in told) and not now.flights


def test_of_more_than_are_needed_the_slowest_are_not_waited_for(seconds: dict[int, float]) -> None:
    now, (told,) = play(simulator(Sync(0.6, over=5 / 3)), 1)
    assert told.record["asked"] == [0, 1, 2, 3, 4] and told.record["merged"] == [0, 1, 2]
    assert told.record["clock"] == pytest.approx(seconds[2]) and told.record["outcomes"] == {"accepted": 3, "late": 2}
    assert now.state.versions.keys() == {0, 1, 2}, "what a late client stored is not what the server knows of"


def broken(clients: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The replies of these clients are damaged."""
    monkeypatch.setattr(driver, "encode_reply", lambda reply, order: sent_by(clients, reply, order))


def sent_by(broken: set[int], reply: Reply, order: Order) -> bytes:
    """The bytes of a reply; of some clients, with a hash that is wrong."""
    data = encode_reply(reply, order)
    return data[:-1] + bytes([data[-1] ^ 1]) if order.client in broken else data


def test_what_is_rejected_is_recorded_and_costs_that_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, bytes] = {}

    def seen(reply: Reply, order: Order) -> bytes:
        return sent.setdefault(order.client, sent_by({2}, reply, order))

    monkeypatch.setattr(driver, "encode_reply", seen)
    _, (told,) = play(simulator(Sync(1.0)), 1)
    assert told.record["merged"] == [0, 1, 3, 4]
    for c in told.clients:
        rejected = c["client"] == 2
        assert c["outcome"] == ("bad_hash" if rejected else "accepted") and bool(c["reason"]) == rejected
        assert c.get("digest") == (sha256(sent[2]).hexdigest() if rejected else None)
        assert c["up"] == len(sent[c["client"]]) and c["flops"] > 0, "what it cost is counted"


def test_another_stands_in_for_a_reply_that_is_rejected(
    seconds: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken({0}, monkeypatch)
    _, (told,) = play(simulator(Sync(0.6, over=5 / 3)), 1)
    assert told.record["merged"] == [1, 2, 3] and told.record["clock"] == pytest.approx(seconds[3])
    assert outcomes(told) == {0: "bad_hash", 1: "accepted", 2: "accepted", 3: "accepted", 4: "late"}


def test_a_deadline_ends_the_round_with_those_that_are_there(seconds: dict[int, float]) -> None:
    limit = (seconds[2] + seconds[3]) / 2
    now, (first, second) = play(simulator(Deadline(1.0, seconds=limit)), 2)
    assert first.record["merged"] == [0, 1, 2] and first.record["clock"] == limit
    assert outcomes(first) == {0: "accepted", 1: "accepted", 2: "accepted", 3: "late", 4: "late"}
    assert second.record["asked"] == [0, 1, 2, 3, 4] and second.record["clock"] == 2 * limit, "nobody is still out"
    late = [c for c in second.clients if c["outcome"] == "late"]
    assert all(c["flops"] > 0 and c["down"] > 0 for c in late), "what they did is counted"
    assert now.state.versions == {0: 2, 1: 2, 2: 2}


def test_a_deadline_that_nobody_misses_is_synchronous(seconds: dict[int, float]) -> None:
    plain, patient = (play(simulator(s), 2)[0] for s in (Sync(1.0), Deadline(1.0, seconds=10 * seconds[4])))
    assert bits(plain) == bits(patient) and plain.clock == patient.clock


def test_a_deadline_that_everybody_misses_leaves_the_model_and_goes_on(seconds: dict[int, float]) -> None:
    sim = simulator(Deadline(1.0, seconds=seconds[0] / 2))
    now, told = play(sim, 2)
    assert bits(now) == bits(sim.begin()) and now.state.round == 2 and not now.state.versions
    assert all(r.record["merged"] == [] and r.record["outcomes"] == {"late": 5} for r in told)


def test_a_buffer_steps_at_every_kth_reply_and_replies_grow_old(seconds: dict[int, float]) -> None:
    sim = simulator(Buffered(busy=3, k=2))
    now, told, out, last = sim.begin(), [], {}, 0.0
    for _ in range(6):
        before = now
        now, round = sim.round(now)
        assert len(round.record["merged"]) == 2
        assert not set(round.record["asked"]) & {f.order.client for f in before.flights}, "nobody works on two orders"
        assert len(before.flights) + len(round.record["asked"]) == 3, "as many work as are to"
        out |= {c: before.state.round for c in round.record["asked"]}
        for c in round.clients:
            assert c["staleness"] == before.state.round - out[c["client"]]
        assert round.record["clock"] >= last
        last = round.record["clock"]
        told.append(round)
    assert any(c["staleness"] > 0 for r in told for c in r.clients)
    assert now.flights and all(f.ends >= now.clock for f in now.flights)


def test_a_buffer_merges_in_the_order_of_arrival(seconds: dict[int, float]) -> None:
    sim = simulator(Buffered(busy=5, k=1))
    now, told = play(sim, 3)
    expected, free = [], {i: s for i, s in seconds.items()}
    for _ in range(3):  # the one that is ready first; it is then asked again, alone
        i = min(free, key=lambda c: (free[c], c))
        expected.append(i)
        clock = free[i]
        free[i] = clock + seconds[i]
    assert [r.record["merged"] for r in told] == [[i] for i in expected]
    assert now.clock == pytest.approx(clock, rel=1e-3)


# ---- the quorum
@pytest.mark.parametrize(("share", "steps"), [(0.0, True), (0.6, True), (0.61, False), (1.0, False)])
def test_a_round_with_fewer_replies_than_its_quorum_leaves_the_model(
    share: float, steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken({1, 3}, monkeypatch)
    sim = simulator(Sync(1.0, quorum_share=share))
    now, (told,) = play(sim, 1)
    assert (bits(now) != bits(sim.begin())) == steps and now.state.round == 1
    assert told.record["merged"] == ([0, 2, 4] if steps else [])
    assert now.state.versions.keys() == ({0, 2, 4} if steps else set())
    assert told.record["outcomes"] == {"accepted": 3, "bad_hash": 2}, "both are recorded, whatever becomes of the round"


def test_a_lost_quorum_costs_nobody_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next order builds on the version before: what was trained in the lost round is not trained on."""
    method = replace(small(METHODS["fedspu"]), schedule=Sync(1.0, quorum_share=1.0))
    sim = world(method, "mlp", fleet=FLEET)
    with monkeypatch.context() as patch:
        broken({1}, patch)
        lost, _ = play(sim, 1)
    orders = sim.method.plan(lost.state, sim.fleet, sim.model, sim.key, (), sim.run)
    assert {o.version for o in orders} == {0} and all(not sim.site.client(o, "work").memory for o in orders)


# ---- what cannot be
@pytest.mark.parametrize(
    "make",
    [
        lambda: Sync(0.0),
        lambda: Sync(1.5),
        lambda: Sync(over=0.0),
        lambda: Sync(quorum_share=1.1),
        lambda: Sync(quorum_share=-0.1),
        lambda: Sync(math.nan),
        lambda: Deadline(seconds=0.0),
        lambda: Buffered(busy=0),
        lambda: Buffered(busy=2, k=3),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"is a|needs"):
        make()
