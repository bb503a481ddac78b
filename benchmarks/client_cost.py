"""What a client of width 0.2 takes against a full one, on its own device: bytes of its messages, memory of its process.

    python benchmarks/client_cost.py

Each client works in a process of its own, as a Flower node's worker does: it is made ready, gets one order as bytes,
and answers it.  ``ready`` is the most memory that the process had before the order, ``peak`` the most of all.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SETTINGS = {"data": "digits", "model": "resnet18", "clients": 2, "partition": "iid", "rounds": 1}


def settings(method: str) -> dict[str, Any]:
    return {"method": method, "epochs": 1, "fraction": 1.0, "fleet": "tiers:0.2,1", **SETTINGS}


def worked(method: str, client: int, home: str) -> dict[str, Any]:
    """In a process of its own: one order, one reply."""
    from fedquilt.drive.flower.letter import Letter
    from fedquilt.drive.flower.node import Node
    from fedquilt.drive.wire import encode_order

    node = Node.of({"settings": settings(method), "node": {"client-id": client}, "home": home})
    sim = node.prepared.sim
    state = sim.begin().state
    order = encode_order(sim.method.order(state, client, sim.fleet, sim.model, sim.key, sim.run))
    del state
    ready = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = node.answer(Letter({"kind": "work"}, order))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "width": sim.fleet.devices[client].width,
        "down": len(order),
        "up": len(told.blob),
        "counted": told.facts["usage"]["peak"],
        "ready": ready * 1024,
        "peak": peak * 1024,
        "seconds": told.facts["seconds"]["work"],
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(worked(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
        return
    print("| method | width | down | up | counted peak | process: ready | peak | more | seconds of work |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for method in ("fedavg", "heterofl", "fedspu"):
        for client in (0, 1):
            with tempfile.TemporaryDirectory() as home:
                words = [sys.executable, __file__, method, str(client), home]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
            r = json.loads(done.stdout.splitlines()[-1])
            sizes = [f"{r[k] / 1e6:.1f} MB" for k in ("down", "up", "counted", "ready", "peak")]
            print(
                f"| {method} | {r['width']:g} | {' | '.join(sizes)} | {(r['peak'] - r['ready']) / 1e6:.1f} MB "
                f"| {r['seconds']:.1f} |"
            )


if __name__ == "__main__":
    main()
