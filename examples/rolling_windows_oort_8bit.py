"""FedRolex's windows, Oort's selection and 8-bit uploads: three papers in one method.

    python examples/rolling_windows_oort_8bit.py

Each device carries a window of units that rolls on from round to round; the clients are those that were worth most
for the time that they take; what they send back costs a byte a coordinate.
"""

from __future__ import annotations

from dataclasses import replace

import fedquilt
from fedquilt.codec import codec_of
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.parts.codecs import Coded
from fedquilt.parts.schedule import Sync
from fedquilt.parts.utility import Utility


def method(fraction: float = 0.2, lr: float = 0.1, over: float = 1.3) -> Method:
    windows = METHODS["fedrolex"](lr=lr)
    return replace(
        windows,
        name="rolling windows, oort, 8 bits",
        select=Utility(explore=0.5),
        local=Coded(windows.local, codec_of("uniform:8")),
        schedule=Sync(fraction, over=over),
    )


def main(rounds: int = 30) -> None:
    for each in (METHODS["fedrolex"](fraction=0.2, lr=0.1), method()):
        done = fedquilt.run(fedquilt.Run(method=each, data="digits", partition="dirichlet:0.3", rounds=rounds))
        said = done.figures()
        print(f"{each.name}: accuracy {said['scores']['test']['mean']:.3f}, {said['up'] / 1e6:.2f} MB sent up")


if __name__ == "__main__":
    main()
