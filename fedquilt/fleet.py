"""The devices that clients run on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .key import Key


@dataclass(frozen=True)
class Device:
    """Speed (FLOP/s), links (bytes/s), memory (bytes), power (W), and the width it can carry.

    ``tier`` names the class of devices that it belongs to, for tables.
    """

    width: float = 1.0
    flops: float = 1e9
    down: float = 1e7
    up: float = 1e6
    memory: float = 1e9
    watts: float = 5.0
    tier: str = "full"

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1:
            raise ValueError(f"a width is a share of the model, above 0 and at most 1, not {self.width}")


@dataclass(frozen=True)
class Fleet:
    """Every client's device, and how many training samples each client has declared."""

    devices: Mapping[int, Device]
    sizes: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.devices)

    def only(self, ids: Collection[int]) -> Fleet:
        """The same fleet, these clients only."""
        return replace(self, devices={i: d for i, d in self.devices.items() if i in ids})

    def without(self, ids: Collection[int]) -> Fleet:
        """The same fleet, less these clients."""
        return replace(self, devices={i: d for i, d in self.devices.items() if i not in ids})


def tiers(sizes: Mapping[int, int], widths: Sequence[float], key: Key) -> Fleet:
    """Clients spread evenly over the widths, by a random permutation: independent of how much data they have.

    Speed and memory go with the width squared, as the cost of a sub-model does.
    """
    ids = sorted(sizes)
    order = key.at("tiers").permutation(len(ids)).tolist()
    devices = {}
    for place, j in enumerate(order):
        w = widths[place * len(widths) // len(ids)]
        devices[ids[j]] = Device(width=w, flops=1e9 * w * w, memory=1e9 * w * w, tier=f"{w:g}")
    return Fleet(dict(sorted(devices.items())), dict(sizes))
