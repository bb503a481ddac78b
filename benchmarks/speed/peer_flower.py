"""Flower's simulation engine with FedAvg: as many actors as cores, each of one core.

``flower`` has the author-style client, ``flower-tuned`` the loop in channels-last.  The cohort and the
order of the samples are told to the clients; all else is Flower's: messages, actors, aggregation.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from .contest import serve
from .loop import Losses
from .plain import Loop

FOLDER, TUNED = "SPEED_FOLDER", "SPEED_TUNED"  # for the actors, which are other processes


@cache
def worker() -> Loop:
    """An actor's net and data, made once in each."""
    return Loop(Path(os.environ[FOLDER]), os.environ[TUNED] == "1", 1)


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    loop, told = worker(), message.content["config"]
    i, n = int(told["client"]), int(told["round"])
    loop.made.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = loop.tensors(*loop.field.client(i))
    orders = [torch.from_numpy(o) for o in loop.field.orders(n, i)]
    steps = loop.train(loop.made, x, y, orders, loop.about["lr"], loop.about["batch"])
    metrics = MetricRecord({"num-examples": len(x), "steps": steps})
    content = RecordDict({"arrays": ArrayRecord(loop.made.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


class Flower:
    version = flwr.__version__

    def __init__(self, folder: Path, cores: int) -> None:
        self.loop = worker()
        self.asked: Queue[int | None] = Queue()
        self.told: Queue[Any] = Queue()
        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                   "init_args": {"num_cpus": cores, "include_dashboard": False}}  # fmt: skip
        self.arrays = ArrayRecord(self.loop.made.state_dict())

        def simulated() -> None:
            warnings.simplefilter("ignore")
            try:
                flwr.simulation.run_simulation(self.server(), client, self.loop.about["clients"],
                                               backend_config=backend)  # fmt: skip
            except BaseException as error:
                self.told.put(error)

        Thread(target=simulated, daemon=True).start()
        self.heard()

    def server(self) -> ServerApp:
        app = ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            strategy = FedAvg(fraction_evaluate=0.0)
            while len(nodes := list(grid.get_node_ids())) < self.loop.about["clients"]:
                pass
            self.told.put(None)
            while (n := self.asked.get()) is not None:
                cohort = self.loop.about["cohorts"][n]
                out = [
                    Message(RecordDict({"arrays": self.arrays, "config": ConfigRecord({"client": i, "round": n})}),
                            node, "train") for i, node in zip(cohort, nodes, strict=False)
                ]  # fmt: skip
                replies = list(grid.send_and_receive(out))
                bad = [r for r in replies if r.has_error()]
                steps = sum(int(r.content["metrics"]["steps"]) for r in replies if not r.has_error())
                arrays, _ = strategy.aggregate_train(n, replies)
                if bad or arrays is None:
                    self.told.put(RuntimeError(f"{len(bad)} clients failed: {bad[0].error if bad else ''}"))
                    continue
                self.arrays = arrays
                self.told.put(steps)

        return app

    def heard(self) -> Any:
        said = self.told.get()
        if isinstance(said, BaseException):
            raise said
        return said

    def round(self, n: int) -> tuple[int | None, int | None]:
        self.asked.put(n)
        steps = self.heard()
        about, ends = self.loop.about, self.loop.field.ends
        return steps, about["epochs"] * int(sum(ends[i + 1] - ends[i] for i in about["cohorts"][n]))

    def score(self) -> Losses:
        self.loop.server.params = self.arrays.to_torch_state_dict()
        return self.loop.score()


def enter(name: str, folder: Path, cores: int) -> None:
    os.environ |= {FOLDER: str(folder.resolve()), TUNED: str(int(name.endswith("tuned"))), "OMP_NUM_THREADS": "1",
                   "FLWR_TELEMETRY_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
                   "PYTHONPATH": str(Path(__file__).parents[1])}  # fmt: skip
    serve(lambda: Flower(folder, cores))
    os._exit(0)  # the simulation's threads wait for ever
