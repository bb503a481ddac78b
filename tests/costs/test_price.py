"""Prices: by hand, again from old records, for rounds; and what unstructured masks are charged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedquilt.drive.wire import encode_order
from fedquilt.engine import Setup
from fedquilt.engine.serial import Serial
from fedquilt.fit import SGD, Fit
from fedquilt.fleet import Device, Fleet, muster
from fedquilt.key import Key
from fedquilt.meter import Price, Usage, density, price, reprice, rounds, together
from fedquilt.methods import METHODS
from fedquilt.models import build
from fedquilt.parts.schedule import Buffered, Deadline, Sync
from fedquilt.task import Classification
from fedquilt.types import Handle

from ..world import play, small, world

DEVICE = Device(flops=100.0, down=10.0, up=5.0, watts=8.0, radio=2.0, idle=0.5)
USED = Usage(flops=400.0, ideal=100.0)


def test_a_price_by_hand() -> None:
    assert price(20, 30, USED, DEVICE) == Price(2 + 4 + 6, 2 * 8 + 8 * 4)
    assert price(20, 30, USED, DEVICE, slowdown=3) == Price(36, 3 * 48)
    assert price(20, 30, USED, DEVICE, sparse="ideal") == Price(2 + 1 + 6, 2 * 8 + 8 * 1)
    assert price(0, 0, Usage(), DEVICE) == Price(0, 0)


def test_usage_adds_but_for_the_peak() -> None:
    a = Usage(1.0, 2, 3, 4, 5, 6.0, 7.0, 8.0, 9.0)
    assert a + Usage() == a == Usage() + a
    assert a + replace(a, peak=5.0) == Usage(2.0, 4, 6, 8, 10, 12.0, 14.0, 16.0, 9.0)
    assert json.loads(json.dumps(vars(a))) == vars(a), "flat, fit for JSON"


def test_a_round_takes_as_long_as_its_slowest() -> None:
    prices = {1: Price(3.0, 10.0), 2: Price(7.0, 20.0)}
    devices = {1: DEVICE, 2: DEVICE}
    assert together(prices, devices) == Price(7.0, 30.0)
    assert together(prices, devices, window=5.0) == Price(10.0, 30.0)
    assert together(prices, devices, window=7.0) == Price(7.0, 30.0)
    assert together(prices, devices, idle=True) == Price(7.0, 30.0 + 4 * 0.5)
    assert together(prices, devices, window=5.0, idle=True) == Price(10.0, 30.0 + 7 * 0.5 + 3 * 0.5)
    assert together({}, {}) == Price(0.0, 0.0)


# ---- again, from the records of a run
SIZES = {i: 14 for i in range(5)}
FLEETS = {
    "tiers": muster("tiers", SIZES, Key(0)),
    "dynamic": muster("levels:high:dynamic=true", SIZES, Key(0), dropout=0.2, stragglers="random:0.5:3"),
}


def played(fleet: Fleet, schedule: Any = None, count: int = 3) -> tuple[Any, list[Any]]:
    method = small(METHODS["heterofl"])
    sim = world(replace(method, schedule=schedule or method.schedule), "mlp", fleet=fleet)
    return sim, play(sim, count)[1]


@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("schedule", [Sync(1.0), Sync(0.6, over=1.6), Deadline(1.0, seconds=0.02), Buffered(3, 2)])
def test_a_run_priced_again_on_its_own_devices_costs_the_same(name: str, schedule: Any) -> None:
    sim, told = played(FLEETS[name], schedule)
    clients = [c for r in told for c in r.clients]
    read = [json.loads(json.dumps(c)) for c in clients]
    assert reprice(read, FLEETS[name], sim.key.at("fleet")) == read == clients
    if schedule == Sync(1.0):
        for again, r in zip(rounds(read), told, strict=True):
            for k in ("round", "clock", "seconds", "down", "up", "flops", "joules"):
                assert again[k] == pytest.approx(r.record[k]), k


def test_a_run_is_priced_again_on_other_devices(tmp_path: Path) -> None:
    _, told = played(FLEETS["tiers"])
    clients = [c for r in told for c in r.clients]
    (tmp_path / "clients.jsonl").write_text("".join(json.dumps(c) + "\n" for c in clients))
    fast = Fleet({i: replace(d, flops=2 * d.flops, tier="fast") for i, d in FLEETS["tiers"].devices.items()})
    again = reprice(tmp_path, fast)
    for a, c in zip(again, clients, strict=True):
        work = c["flops"] / FLEETS["tiers"].devices[c["client"]].flops
        assert a["seconds"] == pytest.approx(c["seconds"] - work / 2) and a["tier"] == "fast"
        assert {k: v for k, v in a.items() if k not in ("seconds", "joules", "tier")} == {
            k: v for k, v in c.items() if k not in ("seconds", "joules", "tier")
        }
    assert rounds(again)[-1]["clock"] < rounds(clients)[-1]["clock"]
    windows = rounds(again, window=0.5)
    assert all(r["seconds"] % 0.5 == pytest.approx(0.0, abs=1e-9) for r in windows)


def test_what_cannot_be_priced_again_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run to price: there is no clients\.jsonl in it"):
        reprice(tmp_path, FLEETS["tiers"])
    record = {"round": 1, "staleness": 0, "client": 9, "down": 0, "up": 0, "flops": 0.0}
    with pytest.raises(ValueError, match="the fleet has no device for client 9, who worked in round 1"):
        reprice([record], FLEETS["tiers"])


def test_bytes_are_those_of_the_messages_and_the_first_broadcast_counts() -> None:
    sim = world(small(METHODS["heterofl"]), "mlp", fleet=FLEETS["tiers"])
    now = sim.begin()
    for round in range(2):
        fleet = FLEETS["tiers"].now(round, now.clock, sim.key.at("fleet"))
        orders = sim.method.plan(now.state, fleet, sim.model, sim.key, (), sim.run)
        sent = {o.client: len(encode_order(o)) for o in orders}
        now, told = sim.round(now)
        assert {c["client"]: c["down"] for c in told.clients} == sent and len(sent) == 5
        assert told.record["down"] == sum(sent.values()) > 0
        sizes = {c["client"]: 4 * next(o for o in orders if o.client == c["client"]).cover.numel for c in told.clients}
        for c in told.clients:
            assert 0 < c["up"] - sizes[c["client"]] < 1000, "the piece in single precision, and its index"


def test_late_replies_cost_energy_but_no_time() -> None:
    record = {"round": 1, "down": 1, "up": 1, "flops": 1.0, "joules": 2.0}
    one, two = {**record, "seconds": 3.0, "outcome": "accepted"}, {**record, "seconds": 9.0, "outcome": "late"}
    (told,) = rounds([one, two])
    assert told["seconds"] == told["clock"] == 3.0 and told["joules"] == 4.0


# ---- masks
def answered(start: dict[str, torch.Tensor]) -> Usage:
    model = build({"name": "mlp", "inputs": 64, "hidden": (16, 16), "classes": 4}, Key(0))
    data = {Handle(0, "train"): (torch.randn(12, 64), torch.zeros(12, dtype=torch.long))}
    engine = Serial(data, Setup("serial", "contiguous", 1))  # type: ignore[arg-type]
    used: list[Usage] = []
    fit = Fit(model, Classification(4), start, Handle(0, "train"), Key(0), SGD(0.0), batch=4)
    engine.answer(fit, used)
    return used[0]


def test_unstructured_masks_are_charged_dense_unless_asked() -> None:
    model = build({"name": "mlp", "inputs": 64, "hidden": (16, 16), "classes": 4}, Key(0))
    g = Key(1).torch()
    some = {k: v * (torch.rand(v.shape, generator=g) < 0.25) if v.dim() > 1 else v for k, v in model.params().items()}
    whole, masked = answered(model.params()), answered(some)
    assert masked.flops == whole.flops == whole.ideal, "zeros are computed with like any number"
    share = density(some)
    assert 0.2 < share < 0.3 and density(model.params()) == 1.0 == density({})
    assert masked.ideal == pytest.approx(masked.flops - (1 - share) * masked.products)
    dense, ideal = (price(0, 0, masked, DEVICE, sparse=s) for s in ("dense", "ideal"))  # type: ignore[arg-type]
    assert dense == price(0, 0, whole, DEVICE) and 0.2 < ideal.seconds / dense.seconds < 0.4
    record = {"round": 1, "staleness": 0, "client": 0, "down": 0, "up": 0, **vars(masked)}
    fleet = Fleet({0: DEVICE})
    assert reprice([record], fleet)[0]["seconds"] == dense.seconds
    assert reprice([record], fleet, sparse="ideal")[0]["seconds"] == ideal.seconds
