"""What a run costs: raw counts where they arise, prices from them whenever they are asked for.

Counts stand at the driver's two crossings (bytes are those of the encoded message) and in the
engine (FLOPs of the executed shapes), so no method can forget or cheat.  The history keeps counts;
:func:`price` turns them into seconds and joules, so an old run can be priced again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch.utils.flop_counter import FlopCounterMode

from .fleet import Device


@dataclass(frozen=True)
class Usage:
    """What an engine did for one client: it adds."""

    flops: float = 0.0
    samples: int = 0
    steps: int = 0
    requests: int = 0
    fallbacks: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Price:
    """What counts cost on a device."""

    seconds: float
    joules: float


def price(down: int, up: int, usage: Usage, device: Device) -> Price:
    """Receive, compute, send, one after the other; the device draws its power all the while."""
    seconds = down / device.down + usage.flops / device.flops + up / device.up
    return Price(seconds, seconds * device.watts)


def flops(work: Callable[[], object]) -> int:
    """The floating point operations of the matrix products and convolutions that ``work`` executes."""
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:  # dropout draws nothing here
        work()
    return int(counter.get_total_flops())
