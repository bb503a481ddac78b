"""Seconds of a round of tiny messages on real Flower nodes: FedQuilt's driver, and plain Flower's FedAvg beside it.

    python benchmarks/flower_overhead.py --nodes 3 --rounds 5 --repeats 3

One SuperLink and its SuperNodes on loopback (TLS, node keys) serve both, in turn, so that a busy machine is busy for
both.  FedQuilt trains a tiny net; plain FedAvg's client sends back 4 kB that it was sent, and imports no torch: what it
takes is Flower alone.  ``--train`` has it import torch as well, which is the least that a client that trains must do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.flower.real import Federation, federation

PEER = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "plain"
version = "1.0.0"
description = "plain FedAvg"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "plain"
[tool.flwr.app.components]
serverapp = "plain.server_app:app"
clientapp = "plain.client_app:app"
[tool.flwr.app.config]
rounds = 3
out = ""
""",
    "plain/__init__.py": "",
    "plain/client_app.py": """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
IMPORT
app = ClientApp()

@app.train()
def train(msg, context):
    arrays, metrics = msg.content["arrays"], MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
""",
    "plain/server_app.py": """
import json, time
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
app = ServerApp()

class Timed(FedAvg):
    def configure_train(self, *args, **more):
        self.began = time.time()
        return super().configure_train(*args, **more)

    def aggregate_train(self, *args, **more):
        self.took = [*getattr(self, "took", []), time.time() - self.began]
        return super().aggregate_train(*args, **more)

@app.main()
def main(grid, context):
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    arrays = ArrayRecord([np.zeros(1000, np.float32)])
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=context.run_config["rounds"])
    open(context.run_config["out"], "w").write(json.dumps(strategy.took))
""",
}


def peer(f: Federation, nodes: int, train: bool) -> Path:
    folder = f.folder / "plain"
    for name, text in PEER.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("NODES", str(nodes)).replace("IMPORT", "import torch" if train else ""))
    return folder


def plain(f: Federation, folder: Path, rounds: int, n: int) -> list[float]:
    out = f.folder / f"plain-{n}.json"
    done = f.flwr("run", str(folder), "tls", "--stream", "-c", f'rounds={rounds} out="{out}"', timeout=600)
    assert out.exists(), done.stdout + done.stderr
    return list(json.loads(out.read_text()))


def ours(f: Federation, nodes: int, rounds: int, n: int) -> list[dict[str, Any]]:
    app, out = f.folder / f"app-{n}", f.folder / f"run-{n}"
    words = f"fedavg --clients {nodes} --fraction 1 --epochs 1 --model mlp:hidden=12 --rounds {rounds} --eval-every 0"
    made = f.fedquilt("deploy", "init", str(app), *words.split(), "--seed", str(n), "--out", str(out))
    assert made.returncode == 0, made.stderr
    done = f.fedquilt("deploy", "run", str(app), "tls", "--attempts", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for kind in ("rounds", "clients") for line in (out / f"{kind}.jsonl").open()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train", action="store_true")
    args = parser.parse_args()
    mine: list[float] = []
    theirs: list[float] = []
    clients: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fq") as folder, federation(Path(folder), args.nodes) as f:
        app = peer(f, args.nodes, args.train)
        for n in range(args.repeats):
            records = ours(f, args.nodes, args.rounds, n)
            # the first round is left out on both sides: it waits for the nodes, and starts what is started once
            mine += [r["seconds"] for r in records if "asked" in r and r["round"] > 1]
            clients += [r for r in records if "wall" in r and r["round"] > 1]
            theirs += plain(f, app, args.rounds, n)[1:]
    for name, seconds in (("fedquilt", mine), ("plain FedAvg", theirs)):
        low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
        print(f"{name:14} a round {middle:6.2f} s ({low:.2f} to {high:.2f}, {len(seconds)} rounds)", end="")
        print(f", a message {middle / args.nodes:.2f} s")
    parts = {k: statistics.median(c["inside"][k] for c in clients) for k in ("start", "forward", "score", "work")}
    wall = statistics.median(c["wall"] for c in clients)
    bytes_ = statistics.median(c["down"] for c in clients), statistics.median(c["up"] for c in clients)
    print(f"a message of fedquilt ({bytes_[0]:.0f} bytes down, {bytes_[1]:.0f} up) takes {wall:.2f} s, of which")
    for k, v in parts.items():
        print(f"  {k:8} {v:6.3f} s")
    print(f"  {'Flower':8} {wall - sum(parts.values()):6.3f} s (waiting to be fetched, started, answered)")


if __name__ == "__main__":
    main()
