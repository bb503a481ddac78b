"""Peak bytes: by hand, against what torch allocates, in the engine's counts, and beside FedSPU's claim."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedquilt.cover import Cover
from fedquilt.engine import Setup
from fedquilt.engine.serial import Serial
from fedquilt.fit import SGD, Evaluate, Fit
from fedquilt.key import Key
from fedquilt.meter import Peak, Saved, Usage, peak, peak_bytes
from fedquilt.models import build
from fedquilt.step import begin, objective, training
from fedquilt.task import Classification
from fedquilt.types import Handle

from ..world import FAMILIES

ROOT = Path(__file__).parents[2]
TRAIN = Handle(0, "train")


def script(name: str) -> Any:
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def family(name: str, **more: Any) -> tuple[Fit, Tensor, Tensor]:
    kind = FAMILIES[name]
    model = build(kind.model, Key(0))
    data = kind.data(12, Key(1))
    return Fit(model, kind.task, model.params(), TRAIN, Key(2), **{"batch": 6, **more}), data.x, data.y


def mlp(free: Any = None, freezing: Any = "executed", batch: int = 3, **more: Any) -> Peak:
    model = build({"name": "mlp", "inputs": 10, "hidden": (8, 4), "classes": 5}, Key(0))
    if free is not None:
        free = model.cover({g: torch.arange(n) for g, n in free.items()})
    x, y = torch.randn(batch, 10), torch.zeros(batch, dtype=torch.long)
    return peak_bytes(model, model.params(), Classification(5), x, y, free, freezing=freezing, **more)


WEIGHTS = 4 * (80 + 8 + 32 + 4 + 20 + 5)
LOSS = 3 * (4 * 5 + 8) + 4  # log-softmax, labels (whole numbers), and the sum of the classes' weights


def test_a_dense_net_by_hand() -> None:
    """The input of each layer (which is the ReLU's output too), and what the loss keeps."""
    inputs = 4 * 3 * (10 + 8 + 4)
    assert mlp() == Peak(WEIGHTS, WEIGHTS, inputs + LOSS)
    assert mlp(optim=SGD(momentum=0.9)).state == WEIGHTS
    assert mlp(batch=6).activations == 2 * (inputs + LOSS - 4) + 4


def test_freezing_by_hand() -> None:
    free = {"dense1": 2, "dense2": 3}
    gradients = 4 * (2 * 10 + 2 + 3 * 2 + 3 + 5 * 3 + 5)
    # dense1 is the first: only its active units are needed, in the ReLU and as input; the path back to it
    # leads through all units of dense2
    exact = 4 * 3 * (10 + 2 + 4) + LOSS
    assert mlp(free, "exact") == Peak(WEIGHTS, gradients, exact)
    assert mlp(free, "cut") == Peak(WEIGHTS, gradients, exact - 4 * 3)
    assert mlp(free, "executed") == mlp()
    assert mlp({}, "exact") == mlp({}, "cut") == mlp()


def test_what_is_wholly_frozen_needs_no_gradient_and_nothing_before_it() -> None:
    model = build({"name": "mlp", "inputs": 10, "hidden": (8, 4), "classes": 5}, Key(0))
    head = Cover.named(model.shapes, "head.*")
    x, y = torch.randn(3, 10), torch.zeros(3, dtype=torch.long)
    ask = (model, model.params(), Classification(5), x, y, head)
    only = Peak(WEIGHTS, 4 * (20 + 5), 4 * 3 * 4 + LOSS)
    assert peak_bytes(*ask) == peak_bytes(*ask, freezing="exact") == only


@pytest.mark.parametrize("name", FAMILIES)
def test_the_graph_holds_what_torch_saves(name: str) -> None:
    """Both ways to count agree, but for bytes and for outputs that no loss looks at; freezing needs less."""
    f, x, y = family(name)
    moving, held = begin(f, y.unique())
    leaves = {k: v.detach().requires_grad_() for k, v in moving.items()}
    with training(f.model.net, f.key), (saved := Saved([*leaves.values(), *held.buffers.values()])):
        seen = objective(f, leaves, held, x.clone(), y.clone())
    copies = sum(4 * v.numel() for v in seen.buffers.values())  # statistics are cloned for each step, and saved
    assert -32 <= saved.nbytes - peak(f, x, y).activations <= copies + 0.02 * saved.nbytes
    part = family(name, free=f.model.prefix(0.5))[0]
    cut, exact, executed = (peak(part, x, y, w) for w in ("cut", "exact", "executed"))
    assert cut.total <= exact.total < executed.total and executed.gradients == sum(
        4 * v.numel() for v in leaves.values()
    )
    assert cut.gradients == exact.gradients == 4 * sum(part.free[k].numel for k in f.model.trainable)  # type: ignore[index]
    assert cut.weights == exact.weights == executed.weights


@pytest.mark.parametrize("name", FAMILIES)
def test_the_engine_counts_it_once_a_form(name: str) -> None:
    momentum = 0.9 if name in ("cnn", "lstm") else 0.0
    f, x, y = family(name, optim=SGD(0.01, momentum=momentum), batch=5)
    engine = Serial({TRAIN: (x, y)}, Setup("serial", "contiguous", 1))  # type: ignore[arg-type]
    used: list[Usage] = []
    engine.answer(f, used)
    engine.answer(f, used)
    engine.answer(Evaluate(f.model, f.task, f.start, TRAIN), used)
    assert used[0] == used[1] and len(engine._costs) == 2
    real = peak(f, x[:5], y[:5])
    copies = 2 * sum(v.numel() * v.element_size() for k, v in f.start.items() if k in f.model.statistics)
    assert -32 <= used[0].peak - real.total <= copies + 0.02 * real.total
    assert used[2].peak == sum(v.numel() * v.element_size() for v in f.start.values())
    assert sum(used, Usage()).peak == used[0].peak and sum(used, Usage()).flops == sum(u.flops for u in used)


@pytest.mark.parametrize("row", [0, 1, 2, 4])
def test_it_is_near_what_torch_allocates(row: int) -> None:
    bench = script("memory_measured")
    f, x, y = bench.request(*bench.ROWS[row])
    assert 0.9 < bench.measured(f, x, y) / peak(f, x, y).total < 1.25


def test_fedspus_claim() -> None:
    """54, 44, 31, 18 %: what counting the active neurons' activations of one sample gives."""
    bench = script("memory_fedspu")
    claim = [0.54, 0.44, 0.31, 0.18]
    assert bench.mean("cut", 1) == pytest.approx(claim, abs=0.02)
    assert bench.mean("exact", None) == pytest.approx([0.59, 0.45, 0.31, 0.17], abs=0.01)
    assert bench.mean("executed", None) == [0.0] * 4
