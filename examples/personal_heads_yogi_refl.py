"""FedPer's personal heads, FedYogi's server and REFL's way with clients that come and go.

    python examples/personal_heads_yogi_refl.py

Clients are awake for half of each day, spread around the globe. Those that will be away soon are asked first. Their
heads stay with them; of the shared base, the server takes an adaptive step.
"""

from __future__ import annotations

from dataclasses import replace

import fedquilt
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.parts.merge import ServerAdam
from fedquilt.parts.presence import LeastAvailable


def method(fraction: float = 0.2, lr: float = 0.1) -> Method:
    return replace(
        METHODS["fedper"](fraction=fraction, lr=lr),
        name="personal heads, yogi, refl",
        select=LeastAvailable(cooldown=2),
        merge=ServerAdam(lr=0.03, yogi=True),
    )


def main(rounds: int = 30) -> None:
    world = {"data": "digits", "partition": "dirichlet:0.3", "availability": "day-night:period=60", "rounds": rounds}
    for each in (METHODS["fedper"](fraction=0.2, lr=0.1), method()):
        scores = fedquilt.run(fedquilt.Run(method=each, **world)).figures()["scores"]["test"]
        print(f"{each.name}: accuracy {scores['mean']:.3f}, worst tenth of the clients {scores['worst_decile']:.3f}")


if __name__ == "__main__":
    main()
