"""Raw counts, and what they cost on a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..fleet import Device, Fleet
from ..key import Key
from ..store import Journal

Record = Mapping[str, Any]
Sparse = Literal["dense", "ideal"]


@dataclass(frozen=True)
class Usage:
    """What an engine did for one client.  It adds, but for ``peak``, of which the larger counts.

    ``backward`` and ``products`` (of matrices, and convolutions) are parts of ``flops``; ``ideal`` is
    what ``flops`` would be if a weight of zero cost nothing; ``peak`` the most bytes of weights,
    gradients, optimiser state and saved activations.
    """

    flops: float = 0.0
    samples: int = 0
    steps: int = 0
    requests: int = 0
    fallbacks: int = 0
    backward: float = 0.0
    products: float = 0.0
    ideal: float = 0.0
    peak: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.flops + other.flops,
            self.samples + other.samples,
            self.steps + other.steps,
            self.requests + other.requests,
            self.fallbacks + other.fallbacks,
            self.backward + other.backward,
            self.products + other.products,
            self.ideal + other.ideal,
            max(self.peak, other.peak),
        )

    def dense(self, share: float) -> Usage:
        """The same, of weights of which only a ``share`` is not zero."""
        return replace(self, ideal=self.flops - (1 - share) * self.products)


@dataclass(frozen=True)
class Price:
    """What counts cost on a device."""

    seconds: float
    joules: float


def price(down: int, up: int, usage: Usage, device: Device, slowdown: float = 1.0, sparse: Sparse = "dense") -> Price:
    """Receive, compute, send, one after the other; each phase draws its own power.

    Zeros inside a weight are charged like any other number; with ``sparse="ideal"`` they cost nothing,
    which no ordinary device achieves.
    """
    work = (usage.flops if sparse == "dense" else usage.ideal) / device.flops
    radio = down / device.down + up / device.up
    return Price(slowdown * (radio + work), slowdown * (radio * device.radio + work * device.watts))


def together(
    prices: Mapping[int, Price], devices: Mapping[int, Device], window: float = 0.0, idle: bool = False
) -> Price:
    """A round in which all are waited for: it takes as long as its slowest, and the energy of all.

    With a ``window`` of seconds above 0 the round ends when a window does.  With ``idle`` those that
    have finished draw their idle power until then.
    """
    seconds = max((p.seconds for p in prices.values()), default=0.0)
    if window > 0:
        seconds = math.ceil(seconds / window - 1e-9) * window
    joules = sum(p.joules for p in prices.values())
    if idle:
        joules += sum(devices[i].idle * (seconds - p.seconds) for i, p in prices.items())
    return Price(seconds, joules)


def reprice(
    clients: Path | str | Iterable[Record], fleet: Fleet, key: Key | None = None, sparse: Sparse = "dense"
) -> list[dict[str, Any]]:
    """The client records of a run (or of its folder), with ``seconds`` and ``joules`` as on the devices of ``fleet``.

    ``key`` is the fleet's, where its devices are drawn again in each round.
    """
    if isinstance(clients, (str, Path)):
        path = Path(clients) / "clients.jsonl"
        if not path.is_file():
            raise ValueError(f"{clients} holds no run to price: there is no clients.jsonl in it")
        clients = Journal(path).records()
    drawn: dict[int, Fleet] = {}
    out = []
    for r in clients:
        round = r["round"] - 1 - r["staleness"]
        if round not in drawn:
            drawn[round] = fleet.drawn(round, key or Key(0))
        if r["client"] not in drawn[round].devices:
            raise ValueError(f"the fleet has no device for client {r['client']}, who worked in round {r['round']}")
        device = drawn[round].devices[r["client"]]
        usage = Usage(flops=r["flops"], ideal=r.get("ideal", r["flops"]))
        cost = price(r["down"], r["up"], usage, device, r.get("slowdown", 1.0), sparse)
        out.append({**r, "tier": device.tier, "seconds": cost.seconds, "joules": cost.joules})
    return out


def rounds(clients: Iterable[Record], window: float = 0.0) -> list[dict[str, Any]]:
    """What each synchronous round came to, from (re-priced) client records: bytes, FLOPs, seconds, joules, clock.

    Replies that were not waited for (``late``) cost energy but no time.  Under a buffered schedule
    rounds overlap: there only the sums over clients mean something.
    """
    found: dict[int, list[Record]] = {}
    for r in clients:
        found.setdefault(r["round"], []).append(r)
    out, clock = [], 0.0
    for round, records in sorted(found.items()):
        waited = {i: Price(r["seconds"], 0.0) for i, r in enumerate(records) if r["outcome"] != "late"}
        seconds = together(waited, {}, window).seconds
        clock += seconds
        sums = {k: sum(r[k] for r in records) for k in ("down", "up", "flops", "joules")}
        out.append({"round": round, "clock": clock, "seconds": seconds, **sums})
    return out
