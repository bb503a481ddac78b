"""Drifts that change the samples themselves: noise, a device's sensors and their rate, wrong labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..key import Key
from .changes import Drift, labelled
from .dataset import Dataset
from .ready import Prepare


def _numeric(data: Dataset, what: str) -> None:
    if data.prepare.tokens:
        raise ValueError(f"{what} changes numbers: {data.name} has tokens")


def _gain(prepare: Prepare, x: Tensor) -> Tensor:
    """How much a step of a raw value is to the net."""
    return prepare.on(prepare.gain, x) if prepare.gain else torch.tensor(1.0)


@dataclass(frozen=True)
class Noise(Drift):
    """Gaussian noise on every value, ``sigma`` in units of what the net sees; it grows by as much with each stroke."""

    sigma: float = 0.3

    touches: ClassVar[bool] = True

    def check(self, data: Dataset) -> None:
        """It needs numbers."""
        _numeric(data, "noise")

    def samples(self, data: Dataset, x: Tensor, y: Tensor, split: str, times: int, key: Key) -> tuple[Tensor, Tensor]:
        """Noisy."""
        raw = x.float()
        noise = torch.randn(raw.shape, generator=key.at(split).torch())
        return raw + times * self.sigma * noise / _gain(data.prepare, raw), y


@dataclass(frozen=True)
class Sensor(Drift):
    """Each device's sensors have a gain and a bias of their own, by channel, drawn anew with each stroke.

    In units of what the net sees, ``x (1 + gain g) + bias b`` with standard normal g and b.
    """

    gain: float = 0.1
    bias: float = 0.1

    touches: ClassVar[bool] = True

    def check(self, data: Dataset) -> None:
        """It needs numbers."""
        _numeric(data, "a sensor's gain")

    def samples(self, data: Dataset, x: Tensor, y: Tensor, split: str, times: int, key: Key) -> tuple[Tensor, Tensor]:
        """As that device sees them."""
        raw, p = x.float(), data.prepare
        drawn = torch.randn(2, raw.shape[1], generator=key.at(times).torch()).view(2, -1, *[1] * (raw.dim() - 2))
        scale, shift = 1 + self.gain * drawn[0], self.bias * drawn[1]
        offset = p.on(p.bias, raw) if p.gain else torch.tensor(0.0)
        return raw * scale + (offset * (scale - 1) + shift) / _gain(p, raw), y


@dataclass(frozen=True)
class Rate(Drift):
    """Each device samples at a rate of its own, from ``low`` to ``high`` times the data's, drawn with each stroke.

    A window then spans another time: its values are interpolated, and the last one stays beyond its end.
    """

    low: float = 0.8
    high: float = 1.25

    touches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(f"rates are above 0, low at most high: not {self.low:g} and {self.high:g}")

    def check(self, data: Dataset) -> None:
        """It needs series."""
        if len(data.shape) != 2 or data.prepare.tokens:
            raise ValueError(f"a sampling rate is of series, channels x time: {data.name} has samples of {data.shape}")

    def samples(self, data: Dataset, x: Tensor, y: Tensor, split: str, times: int, key: Key) -> tuple[Tensor, Tensor]:
        """As sampled at that rate."""
        rate = self.low * (self.high / self.low) ** key.at(times).uniform()
        last = x.shape[-1] - 1
        when = (torch.arange(last + 1, dtype=torch.float64) / rate).clamp(max=last)
        before = when.long().clamp(max=max(0, last - 1))
        part = (when - before).to(torch.float32)
        raw = x.float()
        return raw[..., before] * (1 - part) + raw[..., (before + 1).clamp(max=last)] * part, y


@dataclass(frozen=True)
class LabelNoise(Drift):
    """A share ``p`` of the training labels is another class, any other as likely; drawn anew with each stroke."""

    p: float = 0.2

    touches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.p <= 1:
            raise ValueError(f"p is a share of the labels, from 0 to 1, not {self.p:g}")

    def check(self, data: Dataset) -> None:
        """It needs classes, two at least."""
        labelled(data, "noise on labels")
        if data.classes < 2:
            raise ValueError(f"{data.name} has one class: no label can be another")

    def samples(self, data: Dataset, x: Tensor, y: Tensor, split: str, times: int, key: Key) -> tuple[Tensor, Tensor]:
        """With wrong labels, if they are trained on."""
        if split != "train":
            return x, y
        g = key.at(times).torch()
        wrong = torch.rand(len(y), generator=g) < self.p
        other = (y + torch.randint(1, data.classes, y.shape, generator=g)) % data.classes
        return x, torch.where(wrong, other, y)
