"""What training a net asks of a device, and how long that takes it: what a server can tell before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .devices import Device


@dataclass(frozen=True)
class Demand:
    """Operations for a ``sample`` and for a ``step`` of training, ``peak`` bytes of a step, bytes of a ``message``."""

    sample: float
    step: float = 0.0
    peak: float = 0.0
    message: float = 0.0
    batch: int = 32

    def seconds(self, device: Device, samples: int, epochs: int) -> float:
        """What receiving, so many epochs of training and sending take this device."""
        flops = epochs * (samples * self.sample + math.ceil(samples / self.batch) * self.step)
        return flops / device.flops + self.message / device.down + self.message / device.up

    def fits(self, device: Device, samples: int, epochs: int, seconds: float) -> bool:
        """Can it do that in this time, and hold it?"""
        return self.peak <= device.memory and self.seconds(device, samples, epochs) <= seconds
