"""pfl's SimulatedBackend with FederatedAveraging, one process on all cores; ``pfl-tuned`` in channels-last.

pfl keeps the batches of a client as they first were: no reshuffle between epochs.  It averages what has
a gradient: statistics of normalisation layers are neither averaged nor reset, but go from client to client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from .contest import serve
from .field import Field
from .loop import Losses, laid, loss_of, net, scores


class Asked(TrainingProcessCallback):
    """Ends an iteration of pfl's loop by waiting for the next to be asked for."""

    def __init__(self, contestant: Pfl) -> None:
        self.contestant = contestant

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.contestant.told.put(None)
        self.contestant.asked.get()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.contestant.told.put(None)
        return self.contestant.asked.get(), Metrics()


class Pfl:
    version = version("pfl")

    def __init__(self, folder: Path, tuned: bool, cores: int) -> None:
        torch.set_num_threads(cores)
        self.cores, self.steps = cores, 0
        self.field = field = Field(folder)
        self.about = about = field.about
        made = net(about, {k: torch.from_numpy(v) for k, v in field.params.items()})
        self.made: Any = made.to(memory_format=torch.channels_last) if tuned and len(about["shape"]) == 3 else made
        self.lay = laid if tuned else (lambda x: x)

        def loss(x: Any, y: Any, eval: bool = False) -> Any:
            self.made.train(not eval)
            self.steps += not eval
            return loss_of(self.made(x), y)

        self.made.loss = loss
        self.made.metrics = lambda x, y, eval=False: {"n": Weighted(0.0, len(x))}
        self.asked: Queue[bool] = Queue()
        self.told: Queue[BaseException | None] = Queue()
        Thread(target=self.loop, daemon=True).start()
        self.heard()

    def data(self, i: int) -> Dataset:
        x, y = self.field.client(i)
        return Dataset((self.lay(torch.from_numpy(x)), torch.from_numpy(y)), user_id=str(i),
                       train_kwargs={"eval": False}, eval_kwargs={"eval": True})  # fmt: skip

    def loop(self) -> None:
        def users() -> Iterator[int]:
            for cohort in self.about["cohorts"]:
                yield from cohort
            while True:
                yield 0

        asyncio.set_event_loop(asyncio.new_event_loop())  # pfl asks for the thread's own
        torch.set_num_threads(self.cores)  # a thread has its own number
        coming = users()
        model = PyTorchModel(self.made, torch.optim.SGD,
                             torch.optim.SGD(self.made.parameters(), 1.0))  # fmt: skip
        federated = FederatedDataset(self.data, lambda: next(coming))
        train = NNTrainHyperParams(local_num_epochs=self.about["epochs"], local_learning_rate=self.about["lr"],
                                   local_batch_size=self.about["batch"])  # fmt: skip
        params = NNAlgorithmParams(central_num_iterations=len(self.about["cohorts"]), evaluation_frequency=10**6,
                                   train_cohort_size=self.about["cohort"], val_cohort_size=0)  # fmt: skip
        from pfl.aggregate.weighting import WeightByDatapoints

        backend = SimulatedBackend(federated, federated, [WeightByDatapoints()])
        try:
            FederatedAveraging().run(params, backend, model, train, callbacks=[Asked(self)])
        except BaseException as error:
            self.told.put(error)

    def heard(self) -> None:
        said = self.told.get()
        if said is not None:
            raise said

    def round(self, n: int) -> tuple[int | None, int | None]:
        before = self.steps
        self.asked.put(False)
        self.heard()
        ends = self.field.ends
        samples = sum(int(ends[i + 1] - ends[i]) for i in self.about["cohorts"][n])
        return self.steps - before, samples * self.about["epochs"]

    def score(self) -> Losses:
        x, y = (torch.from_numpy(self.field.array(f"test_{k}")) for k in "xy")
        return scores(self.made, self.lay(x), y)


def enter(name: str, folder: Path, cores: int) -> None:
    serve(lambda: Pfl(folder, name.endswith("tuned"), cores))
