"""What a node does for its client: says hello, works on orders, scores the model that the client would use.

No flwr here: the simulator's own site does the work, over memories in the node's folder, one for each run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...data.shard import SPLITS, Shards
from ...engine.serial import Serial
from ...fleet import PROFILES, Device
from ...key import Key
from ...prepare import Prepared, fleet_of, prepare
from ...run import Run
from ...schema import BadSetting, unknown
from ...store import OnDisk, StoreError
from ...types import Order
from ..site import Here, Scores
from ..wire import decode_order
from .letter import Letter

HOT_BYTES = 64 << 20  # of the memory kept in RAM beside the disk


@dataclass(eq=False)
class Node:
    """One client of one run, on its own device."""

    client: int
    prepared: Prepared
    home: Path
    own: bool = False  # are its data its own, rather than its share of the run's?
    memories: dict[str, OnDisk] = field(default_factory=dict)

    @staticmethod
    def of(about: Mapping[str, Any]) -> Node:
        """The node that a configuration and a run's settings say."""
        config = about["node"]
        run = Run.of(about["settings"], "the Flower app's configuration")
        client = identity(config, run.clients)
        if config.get("data-dir"):
            run = replace(run, data_dir=str(config["data-dir"]))
        prepared = _with_own_data(run, config, client) if config.get("data") else prepare(run)
        device = device_of(config, prepared.here.fleet.devices[client])
        fleet = prepared.here.fleet
        prepared.here.fleet = replace(fleet, devices={**fleet.devices, client: device})
        return Node(client, prepared, Path(about["home"]), bool(config.get("data")))

    def answer(self, asked: Letter) -> Letter:
        """Do what a letter asks."""
        kind = asked.facts.get("kind")
        if kind == "hello":
            return Letter(self.hello())
        end = int(asked.facts.get("use", len(asked.blob)))
        order = self._order(asked.blob[:end])
        here = self._here(order.run)
        splits = list(asked.facts.get("splits", ()))
        seconds: dict[str, float] = {}
        facts: dict[str, Any] = {}
        if splits:
            began = time.perf_counter()
            facts["scores"] = self._scores(here, self._order(asked.blob[end:]) if asked.blob[end:] else order, splits)
            seconds["score"] = time.perf_counter() - began
        reply = b""
        if kind == "work":
            began = time.perf_counter()
            [done] = here.work([order])
            reply = done.reply or b""
            facts |= {"usage": vars(done.usage), "reason": done.reason}
            seconds["work"] = time.perf_counter() - began
        return Letter({**facts, "seconds": seconds}, reply)

    def hello(self) -> dict[str, Any]:
        """Who this is, on what device, with how much data of which kind."""
        here, data = self.prepared.here, self.prepared.data
        return {
            "client": self.client,
            "version": __version__,
            "torch": torch.__version__,
            "run": "" if self.own else self.prepared.sim.run,
            "device": asdict(here.fleet.devices[self.client]),
            "counts": data.counts(self.client),
            "fingerprint": data.fingerprint,
            "own": self.own,
            "shape": list(data.data.shape),
            "classes": data.data.classes,
        }

    def _order(self, blob: bytes) -> Order:
        shapes = {k: tuple(t.shape) for k, t in self.prepared.sim.model.params().items()}
        order = decode_order(blob, shapes)
        if order.client != self.client:
            raise ValueError(f"the order is client {order.client}'s, and this node is client {self.client}'s")
        if not self.own and order.run != self.prepared.sim.run:
            raise ValueError(
                f"the order is of run {order.run}, and this node's settings and data make run {self.prepared.sim.run}: "
                "give both sides the same app, data and version of the library"
            )
        return order

    def _here(self, run: str) -> Here:
        if run not in self.memories:
            if not run.isalnum():
                raise ValueError(f"a run's name is made of letters and figures, not {run!r}")
            self.memories[run] = OnDisk(self.home / run, HOT_BYTES, spare=1)
        return replace(self.prepared.here, memories=self.memories[run])

    def _scores(self, here: Here, order: Order, splits: list[str]) -> Scores | None:
        try:
            return here.score([order], splits)[0]
        except StoreError:
            return None  # the work says why


def identity(config: Mapping[str, Any], clients: int) -> int:
    """A node's client: ``client-id``, or else ``partition-id``, of its configuration."""
    said = config.get("client-id", config.get("partition-id"))
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said < clients:
        raise BadSetting(
            f"a node says which client it is, from 0 to {clients - 1}, with "
            f'flower-supernode --node-config "client-id=0"; it said {said!r}'
        )
    return said


def device_of(config: Mapping[str, Any], given: Device) -> Device:
    """The device that a node says it is: a ``profile``, a ``width``; else the one that the run's fleet gives it."""
    name = config.get("profile")
    if name is not None and name not in PROFILES:
        raise unknown("device", str(name), PROFILES)
    device = PROFILES[str(name)] if name is not None else given
    width = config.get("width")
    return device if width is None else replace(device, width=float(width), tier=f"{float(width):g}")


def _with_own_data(run: Run, config: Mapping[str, Any], client: int) -> Prepared:
    """The run over a node's own data: they are all of this client's, split as the run says."""
    alone = replace(run, data=str(config["data"]), partition="iid", clients=1, drift="", unseen=0.0)
    made = prepare(alone)
    sizes = dict.fromkeys(range(run.clients), made.data.counts(0)["train"])  # those of others are not known here
    fleet = fleet_of(run, sizes, Key(run.seed).at("fleet"))
    parts = {s: made.data.at(0).part(0, s) for s in SPLITS}
    shards = Shards(made.data.data, {client: parts})
    here = replace(made.here, shares=shards, engine=Serial(shards, made.setup), fleet=fleet)
    return replace(made, here=here, data=shards)
