"""FedJAX's federated averaging, on all cores.  The CNNs of W1 and W2, written in JAX.

FedJAX shuffles by its own seed.  Its own stream repeats the data before it cuts batches, so that no
batch but the last is partial: the steps of several epochs are fewer by up to one an epoch.
It has no notion of statistics: batches are normalised by themselves, in scoring too.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .contest import serve
from .field import Field

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 asks for a name that JAX has since dropped
fedjax: Any = import_module("fedjax")
fed_avg: Any = import_module("fedjax.algorithms.fed_avg")
datasets: Any = import_module("fedjax.core.client_datasets")

PAIR = ("NCHW", "OIHW", "NCHW")


def forward(p: dict[str, Any], x: Any, blocks: int, dense: int) -> Any:
    for i in range(1, blocks + 1):
        x = jax.lax.conv_general_dilated(x, p[f"conv{i}.conv.weight"], (1, 1), "SAME", dimension_numbers=PAIR)
        x = x + p[f"conv{i}.conv.bias"][:, None, None]
        mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        scale, shift = (p[f"conv{i}.norm.{k}"][:, None, None] for k in ("weight", "bias"))
        x = jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift)
        x = x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).max((3, 5))
    x = x.reshape(len(x), -1)
    for i in range(1, dense + 1):
        x = jax.nn.relu(x @ p[f"dense{i}.linear.weight"].T)
    return x @ p["head.weight"].T + p["head.bias"]


class FedJax:
    version = version("fedjax")

    def __init__(self, folder: Path) -> None:
        self.field = Field(folder)
        self.about = about = self.field.about
        blocks, dense = {"emnist_cnn": (2, 0), "cifar_cnn": (2, 2)}[about["model"]]

        def loss(p: Any, batch: Any, key: Any = None) -> Any:
            said = jax.nn.log_softmax(forward(p, batch["x"], blocks, dense))
            return -jnp.take_along_axis(said, batch["y"][:, None], 1).mean()

        grad = jax.jit(jax.grad(loss))
        self.loss, hparams = jax.jit(loss), datasets.ShuffleRepeatBatchHParams(about["batch"], about["epochs"], seed=0)
        self.algorithm = fed_avg.federated_averaging(
            grad, fedjax.optimizers.sgd(about["lr"]), fedjax.optimizers.sgd(1.0), hparams
        )
        learnt = {k: jnp.asarray(v) for k, v in self.field.params.items() if "running" not in k}
        self.state = self.algorithm.init(learnt)

    def round(self, n: int) -> tuple[int | None, int | None]:
        keys = jax.random.split(jax.random.PRNGKey(n), self.about["cohort"])
        clients, steps, samples = [], 0, 0
        for i, key in zip(self.about["cohorts"][n], keys, strict=True):
            x, y = self.field.client(i)
            clients.append((str(i).encode(), datasets.ClientDataset({"x": np.asarray(x), "y": np.asarray(y)}), key))
            samples += len(x) * self.about["epochs"]
            steps += -(-len(x) * self.about["epochs"] // self.about["batch"])
        self.state, _ = self.algorithm.apply(self.state, clients)
        jax.block_until_ready(self.state.params)
        return steps, samples

    def score(self) -> dict[str, float]:
        x, y = self.field.array("test_x"), self.field.array("test_y")
        ends = range(0, len(x), 512)
        parts = [(len(x[a : a + 512]), self.loss(self.state.params, {"x": x[a : a + 512], "y": y[a : a + 512]}))
                 for a in ends]  # fmt: skip
        return {"batch_loss": sum(n * float(v) for n, v in parts) / len(x)}


def enter(name: str, folder: Path, cores: int) -> None:
    serve(lambda: FedJax(folder))
