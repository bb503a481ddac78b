"""Which part of the model goes down to a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cover import Cover, count_units
from ..fleet import Device
from ..key import Key
from ..model import Model
from ..types import Part, State


@dataclass(frozen=True)
class Everything(Part):
    """The whole model."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """All of it."""
        return model.whole


@dataclass(frozen=True)
class Except(Part):
    """The whole model but the tensors whose names match (``head.*``), or else but its head."""

    patterns: tuple[str, ...] = ()

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """What is shared."""
        return model.whole - Cover.named(model.shapes, *(self.patterns or (f"{model.head}.*",)))


@dataclass(frozen=True)
class ExceptNorms(Part):
    """The whole model but its normalisation layers."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """What is shared."""
        return model.whole.only(lambda k: k not in model.normalising)


@dataclass(frozen=True)
class Nothing(Part):
    """No part of the model: there is no federation."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """None of it."""
        return Cover({})


@dataclass(frozen=True)
class Ordered(Part):
    """A device of width r gets the first ``max(1, floor(r n))`` units of every group of n."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The prefix of every group."""
        return model.prefix(device.width)


@dataclass(frozen=True)
class Rolling(Part):
    """FedRolex: in round j a device of width r gets the units j, j + 1, ... of every group, around its end."""

    step: int = 1

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The window of this round."""
        first = self.step * state.round
        return model.cover(
            {g: (first + torch.arange(count_units(device.width, n))) % n for g, n in model.groups.items()}
        )


@dataclass(frozen=True)
class Random(Part):
    """Units of every group, drawn afresh for each round and client.

    As many as ``max(1, floor(r n))``, with r the ``ratio`` or else the device's width; and only of the
    first ``max(1, floor(target n))``.
    """

    ratio: float | None = None
    target: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("ratio", self.ratio), ("target", self.target)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} is a share of the units, above 0 and at most 1, not {value}")

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """Random units of every group."""
        width = min(device.width if self.ratio is None else self.ratio, self.target)

        def drawn(group: str, n: int) -> Tensor:
            return key.at(group).permutation(count_units(self.target, n))[: count_units(width, n)]

        return model.cover({g: drawn(g, n) for g, n in model.groups.items()})

    def used(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover | None:
        """All that is learnt, where it is not the device that bounds what it trains."""
        return None if self.ratio is None else model.prefix(self.target)
