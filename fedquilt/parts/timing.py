"""What a server knows of the time that its clients take, from the replies that it has had."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..cover import Params
from ..fleet import Device
from ..key import Key
from ..types import Reply


def nbytes(params: Params) -> int:
    """Bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in params.values())


def spent(reply: Reply, device: Device) -> tuple[float, float]:
    """The seconds of a reply on its device: those of computing, and those on the way (tensors alone)."""
    down = 0 if reply.order is None else nbytes(reply.order.params)
    radio = down / device.down + nbytes(reply.params) / device.up
    return max(reply.seconds - radio, 0.0), radio


def drawn(ids: Sequence[int], weights: Sequence[float], n: int, key: Key) -> list[int]:
    """``n`` of these, one after another, each as likely as its weight among those that are left; in that order.

    Who weighs nothing comes after all others.
    """
    luck = -torch.rand(len(ids), dtype=torch.float64, generator=key.torch()).clamp(min=1e-300).log()
    rank = luck / torch.tensor(weights, dtype=torch.float64).clamp(min=1e-12)
    return [ids[j] for j in rank.argsort(stable=True)[: max(n, 0)].tolist()]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which such a share of them lies."""
    return float(torch.tensor(values, dtype=torch.float64).quantile(share))
