"""Whole nets of which only a part is shared: FedSelect's single weights, FedP3's layers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..cover import Cover, Params
from ..fit import Fitted, Slices
from ..fleet import Device
from ..key import Key
from ..model import Model
from ..types import Brief, Client, Grant, Order, Part, Served, Serving, State, Work
from .local import Train, answer, measured, remember, section, sewn
from .masks import largest, masked, prunable
from .nested import Nested
from .sparse import Masked, thin

Layers = Literal["all", "one", "two", "three", "random"]


@dataclass(frozen=True)
class Alternating(Part):
    """FedSelect's client: in turns it trains the weights that are its own and those that it shares, on the whole net.

    In every ``every``-th of its rounds, of each tensor the share ``rate`` of the shared weights that have moved most
    since the last time becomes its own, until a share ``limit`` of the tensor is.
    """

    train: Train = Train()
    rate: float = 0.25
    limit: float = 0.8
    every: int = 3

    def __post_init__(self) -> None:
        if not (0 <= self.rate <= 1 and 0 <= self.limit <= 1 and self.every >= 1):
            raise ValueError("rate and limit are shares from 0 to 1, every is a number of rounds")

    def grant(self, cover: Cover, model: Model) -> Grant:
        """As much of what was sent as it still shares."""
        return Grant(cover, frozenset({"same", "whole", "mask"}))

    def _trained(self, order: Order, client: Client, whole: Params, own: Params) -> Generator[Any, Any, Fitted]:
        """A pass over its own weights and one over the shared ones, in each epoch; without own ones, plain training."""
        m = client.model
        mine = Cover.masks(own)
        if not len(mine):
            plain: Fitted = yield self.train.fit(order, client, whole)
            return plain
        fit = self.train.fit(order, client, whole)
        out = Fitted(whole, 0.0, 0, 0)
        for e in range(fit.epochs):
            for name, free in (("own", mine), ("shared", m.whole - mine)):
                key = client.key.at("train", e, name)
                out = yield replace(fit, start=out.params, key=key, epochs=1, free=free)
        return out

    def __call__(self, order: Order, client: Client) -> Work:
        """Train in turns; let more weights become its own; send the others."""
        m, whole, turn = client.model, sewn(order, client), int(client.memory.facts.get("turn", 0)) + 1  # type: ignore[arg-type]
        own = section(client.memory, "mask") or {k: torch.zeros(m.shapes[k]).bool() for k in prunable(m)}
        before = section(client.memory, "before") or {k: whole[k] for k in own}
        out: Fitted = yield from self._trained(order, client, whole, own)
        metrics = yield from measured(order, client, out)
        if turn % self.every == 0:
            own = {k: v | self.chosen(out.params[k] - before[k], v) for k, v in own.items()}
            before = {k: out.params[k] for k in own}
        spoken = order.cover - Cover.masks(own)
        memory = remember({"turn": turn}, model=out.params, mask=own, before=before)
        return answer(order, client, out.params, metrics, spoken), memory

    def chosen(self, moved: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Which shared weights of a tensor become its own."""
        room = int(self.limit * own.numel() + 1e-9) - int(own.sum())
        return largest(moved, min(int(self.rate * int((~own).sum()) + 1e-9), room), ~own) & ~own

    def serve(self, order: Order, client: Client) -> Serving:
        """Its own weights among the newest shared ones."""
        whole = sewn(order, client)
        if order.norm == "post-hoc":
            tuned: Fitted = yield self.train.fit(order, client, whole, epochs=0)
            whole = tuned.params
        return Served(client.model, whole, order.norm)


# ---- layers
@dataclass(frozen=True)
class SomeLayers(Part):
    """FedP3: some stages and the head whole, of the other stages the ``keep`` largest weights of each tensor.

    ``layers`` of a client's own are one, two or three consecutive stages, from a place on that follows from its id;
    a ``random`` half of them in each round; or all.
    """

    layers: Layers = "two"
    keep: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is a share of the weights, above 0 and at most 1, not {self.keep}")

    def own(self, model: Model, client: int, key: Key) -> tuple[str, ...]:
        """The stages that a client trains for all."""
        n = len(model.stages)
        if self.layers == "random":
            drawn = key.at("layers").permutation(n)[: -(-n // 2)].tolist()
            return tuple(model.stages[i] for i in sorted(drawn))
        count = n if self.layers == "all" else min(n, ("one", "two", "three").index(self.layers) + 1)
        return tuple(model.stages[i] for i in sorted((client + j) % n for j in range(count)))

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """Its own layers, and a thinner form of the others."""
        others = [k for k in prunable(model) if stage_of(model, k) not in (None, *self.own(model, client, key))]
        masks = {k: largest(state.params[k], max(1, int(self.keep * state.params[k].numel() + 1e-9))) for k in others}
        return masked(model, masks)

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """Which layers those are."""
        return Brief({"layers": ",".join(self.own(model, client, key))})


def stage_of(model: Model, name: str) -> str | None:
    """The stage that a tensor belongs to (None: to what comes before, between or behind them)."""
    return next((s for s in model.stages if name.startswith(s + ".")), None)


@dataclass(frozen=True)
class ForLayers(Masked):
    """FedP3's client: trains what it was sent, the thin layers under their masks, and answers with its own layers.

    With ``least`` below 1 each step draws one of five shares from there to 1, and runs and moves the first units
    of every group alone, so many of them.
    """

    least: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ValueError(f"least is a share of the units, above 0 and at most 1, not {self.least}")

    def _slices(self, model: Model, whole: Params, key: Key) -> Slices:
        """What a step may draw."""
        shares = tuple(self.least + (1 - self.least) * i / 4 for i in range(5))
        return Nested(self.train, shares).slices(model, whole, 1.0, key, own=False)

    def grant(self, cover: Cover, model: Model) -> Grant:
        """Whole tensors of what was sent."""
        return Grant(cover, frozenset({"same", "whole"}))

    def __call__(self, order: Order, client: Client) -> Work:
        """Train all, tell some."""
        m, (whole, free) = client.model, thin(order, client)
        slices = self._slices(m, whole, client.key.at("width")) if self.least < 1 else None
        out: Fitted = yield self.train.fit(order, client, whole, free=free, slices=slices)
        metrics = yield from measured(order, client, out)
        mine = {None, *str(order.scalars["layers"]).split(",")}
        spoken = order.cover.only(lambda k: stage_of(m, k) in mine)
        memory = remember(model=self.train.kept(order, client, out.params))
        return answer(order, client, out.params, metrics, spoken), memory
