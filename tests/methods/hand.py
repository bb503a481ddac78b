"""Rounds by hand: a model of two numbers, orders and replies that a test writes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedquilt.cover import Cover, Params
from fedquilt.fleet import Device, Fleet
from fedquilt.types import Grant, Order, Reply, State

DEVICE = Device(flops=1e3, down=1e3, up=1e3)


def params(*values: float) -> Params:
    """The whole model: one vector."""
    return {"w": torch.tensor(values)}


def state(p: Params, round: int = 0, **notes: Any) -> State:
    return State(round, p, notes)


def reply(
    client: int,
    new: Params,
    sent: Params,
    round: int = 0,
    weight: float = 1.0,
    cover: Cover | None = None,
    seconds: float = 0.0,
    scalars: Mapping[str, Any] | None = None,
    **metrics: float,
) -> Reply:
    """What a client made of what it was sent; ``new`` is what it speaks of."""
    whole = Cover.whole(sent)
    order = Order("hand", 0, client, round, sent, whole, Grant(whole), scalars=scalars or {})
    cover = whole if cover is None else cover
    return Reply(client, round, new, cover, weight, {"loss": 1.0, **metrics}, seconds=seconds, order=order)


def fleet(n: int, **devices: Device) -> Fleet:
    """``n`` clients with one sample each, on one kind of device but for those named (``c3=...``)."""
    return Fleet({i: devices.get(f"c{i}", DEVICE) for i in range(n)}, dict.fromkeys(range(n), 1))
