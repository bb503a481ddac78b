"""The workloads of the benchmark: data from a key, and the same numbers for everybody who is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedquilt.data.dataset import Dataset
from fedquilt.data.ready import Prepare
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.run import Run
from fedquilt.task import Classification, NextToken

KEY = Key(2024)


@dataclass(frozen=True)
class Work:
    """So many clients of so many training samples each (from, to), ``cohort`` of them a round.

    A client has a third as many samples again for its score.  ``peers`` says who is measured beside.
    """

    name: str
    about: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    cohort: int
    samples: tuple[int, int]
    batch: int
    epochs: int
    rounds: int  # measured, after one that is not
    lr: float = 0.02
    methods: tuple[str, ...] = ("fedavg",)
    settings: Mapping[str, Any] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    scored: bool = True  # not where scoring the population, every tenth round, would hide what a round costs

    @property
    def tokens(self) -> bool:
        """Are the samples sequences of tokens?"""
        return self.model.startswith("lstm")

    def sizes(self) -> list[int]:
        """How many samples each client trains on."""
        low, high = self.samples
        return (low + torch.arange(self.clients) * 7919 % (high - low + 1)).tolist()

    def data(self) -> Dataset:
        """Gaussian blobs around a centre for each class, or random tokens; each client's rows stand together."""
        key = KEY.at(self.name)
        totals = torch.tensor([n + max(1, n // 3) for n in self.sizes()])
        groups = torch.repeat_interleave(torch.arange(self.clients), totals)
        n = len(groups)
        if self.tokens:
            text = torch.randint(self.classes, (n, self.shape[0] + 1), generator=key.torch())
            x, y, task = text[:, :-1].contiguous(), text[:, 1:].contiguous(), NextToken(self.classes)
            ready = Prepare(tokens=True)
        else:
            y = torch.randint(self.classes, (n,), generator=key.at("labels").torch())
            centres = torch.randn(self.classes, *self.shape, generator=key.at("centres").torch())
            x = torch.randn(n, *self.shape, generator=key.torch())
            for some, labels in zip(x.split(4096), y.split(4096), strict=True):  # no second copy of all
                some.add_(centres[labels], alpha=0.5)
            task, ready = Classification(self.classes), Prepare()
        return Dataset(self.name, x, y, task, self.shape, self.classes, ready, groups)

    def run(self, method: str = "fedavg", rounds: int | None = None, **more: Any) -> Run:
        """The run of a method on it."""
        built = METHODS[method](lr=self.lr, epochs=self.epochs, batch=self.batch)
        built = replace(built, schedule=replace(built.schedule, fraction=1.0, clients=self.cohort))
        given = dict(self.settings) | more
        return Run(
            built, self.data(), self.model, self.clients, "natural:least=1", "75/0/25", eval_every=10,
            rounds=self.rounds if rounds is None else rounds, **given,
        )  # fmt: skip

    def tiny(self) -> Work:
        """The same, small enough for a test."""
        low = min(self.samples[0], 6)
        return replace(self, clients=6, cohort=2, samples=(low, low + 5), batch=min(self.batch, 4), epochs=2, rounds=1)


EMNIST = Work("W1", "FedSPU's EMNIST CNN, 100 clients, 10 a round, 80 to 220 samples, 5 epochs, batches of 16",
              "emnist_cnn", (1, 28, 28), 62, 100, 10, (80, 220), 16, 5, 10,
              peers=("author", "loop", "flower", "flower-tuned", "pfl", "pfl-tuned", "fedjax"))  # fmt: skip
MLP = "mlp:hidden=16"
WORKS: tuple[Work, ...] = (
    EMNIST,
    Work("W2", "FedSPU's CIFAR10 CNN, 100 clients, 10 a round, 500 samples, 5 epochs, batches of 128",
         "cifar_cnn", (3, 32, 32), 10, 100, 10, (500, 500), 128, 5, 6, peers=EMNIST.peers),
    Work("W3", "ResNet-18, 10 clients, 2 a round, 250 samples, 1 epoch, batches of 64",
         "resnet18", (3, 32, 32), 10, 10, 2, (250, 250), 64, 1, 3, peers=("author", "loop")),
    Work("W4", "LSTM on sequences of 80 tokens, 100 clients, 10 a round, 20 to 60 sequences, 1 epoch, batches of 10",
         "lstm", (80,), 80, 100, 10, (20, 60), 10, 1, 3, lr=0.5, peers=("author", "loop")),
    replace(EMNIST, name="W5", about="W1 on devices of five widths (0.2, 0.4, 0.6, 0.8, 1)", peers=(),
            methods=("fedavg", "fedspu", "heterofl"), settings={"fleet": "tiers:0.2,0.4,0.6,0.8,1"}, rounds=6),
    *(Work(f"W6-{n}", f"an MLP of 16 units, {n:,} clients, {cohort:,} a round, 8 to 12 samples, 1 epoch, batches of 8",
           MLP, (16,), 10, n, cohort, (8, 12), 8, 1, 4, lr=0.05, methods=("fedavg", "fedper"), scored=False)
      for n, cohort in ((1_000, 100), (10_000, 100), (100_000, 1_000))),
)  # fmt: skip
BY_NAME: Mapping[str, Work] = {w.name: w for w in WORKS}
