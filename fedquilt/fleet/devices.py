"""A device: what it can do, and where each of its figures comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

GIGA, MEGABIT = 1e9, 1e6 / 8  # bytes a second in a megabit a second

TRAINING = 0.25  # assumed: the share of its peak that a processor reaches in training (the Pi's Linpack: a third)


@dataclass(frozen=True)
class Device:
    """Speed (FLOP/s, fp32, in training), links (bytes/s), memory (bytes), power (W), and the width it can carry.

    It draws ``watts`` while it computes, ``radio`` while it receives or sends, and ``idle`` while it
    waits for others.  ``tier`` names the class of devices that it belongs to, for tables; ``network``
    the link that it shares with others of that name; ``source`` says where the figures come from.
    """

    width: float = 1.0
    flops: float = 1e9
    down: float = 1e7
    up: float = 1e6
    memory: float = 1e9
    watts: float = 5.0
    radio: float = 1.0
    idle: float = 0.5
    tier: str = "full"
    plugged: bool = True
    network: str = ""
    source: str = "assumed"

    def __post_init__(self) -> None:
        if not 0 < self.width <= 1:
            raise ValueError(f"a width is a share of the model, above 0 and at most 1, not {self.width}")
        for name in ("flops", "down", "up", "memory"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} of a device is a number above 0, not {getattr(self, name)}")
        for name in ("watts", "radio", "idle"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} of a device is a number, at least 0, not {getattr(self, name)}")


# Each figure with its source; what has none is assumed.  Widths are assumed throughout.
PROFILES: Mapping[str, Device] = {
    "jetson-nano": Device(
        width=0.5,
        flops=TRAINING * 128 * 2 * 921.6e6,  # 128 CUDA cores, 2 operations a cycle at 921.6 MHz: 236 GFLOP/s
        down=100 * MEGABIT,  # assumed: a line at home; the board has gigabit Ethernet
        up=20 * MEGABIT,  # assumed
        memory=4 * GIGA,
        watts=10.0,  # the budget of its default power mode
        radio=3.0,  # assumed
        idle=2.0,  # assumed
        tier="jetson-nano",
        source="NVIDIA, Jetson Nano power modes (10 W: 4 cores, 921.6 MHz) and data sheet (128 cores, 4 GB); "
        "a quarter of the peak in training, links, radio and idle power: assumed",
    ),
    "raspberry-pi-4": Device(
        width=0.25,
        flops=TRAINING * 4 * 8 * 1.5e9,  # 4 cores, one 128-bit fused multiply-add a cycle at 1.5 GHz: 48 GFLOP/s
        down=100 * MEGABIT,  # assumed, as above
        up=20 * MEGABIT,  # assumed
        memory=4 * GIGA,
        watts=5.4,
        radio=3.0,  # assumed
        idle=2.2,
        tier="raspberry-pi-4",
        source="magpi.raspberrypi.com, Raspberry Pi 4 specs (4 Cortex-A72, 1.5 GHz, up to 4 GB); chipwired.com, "
        "Raspberry Pi power use (5.4 W at high load, 2.2 W idle); feiereisen.net, Linpack (about 8 of 24 GFLOP/s in "
        "fp64); a quarter of the peak in training, links, radio power: assumed",
    ),
    "phone-low": Device(
        width=0.25,
        flops=TRAINING * 124e9,
        down=5 * MEGABIT,  # assumed: among the 48 of 128 phones of mpfl that are below 10 Mbps
        up=1 * MEGABIT,  # assumed
        memory=3 * GIGA,
        watts=2.5,  # assumed
        radio=1.3,  # assumed: the order of LTE's base power in Huang et al., MobiSys 2012
        idle=0.5,  # assumed
        tier="phone-low",
        source="nanoreview.net, Snapdragon 625 (Adreno 506: 124 GFLOP/s); mpfl (Mishra and Gupta, ACM TOSN 2023): 3 GB "
        "is the commonest memory; a quarter of the peak in training, links, power: assumed",
    ),
    "phone-middle": Device(
        width=0.5,
        flops=TRAINING * 435.2e9,
        down=13 * MEGABIT,
        up=6 * MEGABIT,
        memory=6 * GIGA,  # assumed
        watts=3.0,  # assumed
        radio=1.3,  # assumed, as above
        idle=0.5,  # assumed
        tier="phone-middle",
        source="theworldsbestandworst.com, Adreno 618 (435.2 GFLOP/s); Huang et al., MobiSys 2012: LTE's median "
        "throughput, 13 and 6 Mbps; a quarter of the peak in training, memory, power: assumed",
    ),
    "phone-high": Device(
        width=1.0,
        flops=TRAINING * 727e9,
        down=110.6e6,
        up=14.0e6,
        memory=8 * GIGA,  # assumed
        watts=4.0,  # assumed
        radio=1.3,  # assumed, as above
        idle=0.5,  # assumed
        tier="phone-high",
        source="FedLPS (Xue et al.): Adreno 630, 727 GFLOP/s, and in its code 110.6 MB/s down, 14.0 MB/s up; a quarter "
        "of the peak in training, memory, power: assumed",
    ),
}
