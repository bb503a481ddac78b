"""Which part of the model goes down to a device."""

from __future__ import annotations

from dataclasses import dataclass

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
class Random(Part):
    """A device of width r gets ``max(1, floor(r n))`` units of every group, drawn afresh for each round and client."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """Random units of every group."""
        return model.cover(
            {g: key.at(g).permutation(n)[: count_units(device.width, n)] for g, n in model.groups.items()}
        )
