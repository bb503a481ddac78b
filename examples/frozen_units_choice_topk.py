"""FedSPU's frozen training, power-of-choice and top-k uploads with error feedback.

    python examples/frozen_units_choice_topk.py

A device is sent random units and trains them inside its own whole model; those with the largest loss take part more
often; of each change the greatest fifth goes up, and the client remembers the rest.
"""

from __future__ import annotations

from dataclasses import replace

import fedquilt
from fedquilt.codec import codec_of
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.parts.codecs import Coded
from fedquilt.parts.utility import PowerOfChoice


def method(fraction: float = 0.2, lr: float = 0.1) -> Method:
    frozen = METHODS["fedspu"](fraction=fraction, lr=lr)
    local = Coded(frozen.local, codec_of("topk:0.2"), feedback=True)
    return replace(frozen, name="frozen units, power of choice, top-k", select=PowerOfChoice(2.0), local=local)


def main(rounds: int = 30) -> None:
    for each in (METHODS["fedspu"](fraction=0.2, lr=0.1), method()):
        run = fedquilt.Run(method=each, data="digits", partition="dirichlet:0.3", rounds=rounds)
        said = fedquilt.run(run).figures()
        print(f"{each.name}: accuracy {said['scores']['test']['mean']:.3f} for {said['up'] / 1e3:.0f} kB sent up")


if __name__ == "__main__":
    main()
