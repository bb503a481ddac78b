"""Each term, view and watch for itself: its gradient, its law, and that it and every request are plain data."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedquilt.parts
from fedquilt.cover import Cover, Params
from fedquilt.fit import SGD, Fit, Request, Step, TaskLoss, Term, View, Watch
from fedquilt.fleet import Device
from fedquilt.key import Key
from fedquilt.methods import METHODS
from fedquilt.model import Model
from fedquilt.norm import NORMS, held, travelling
from fedquilt.parts import local as local_module
from fedquilt.parts.local import Length, Train
from fedquilt.parts.terms import TERMS, VIEWS, WATCHES, Proximal, SeenClasses
from fedquilt.step import Seen, begin, gradient, training
from fedquilt.types import Part

from ..engine.tiny import KEY, client, drive, engine, fit, order, samples, task, tiny, weights
from .test_vmap import PARTS, STOCK, requests


def at(f: Fit, moving: Params | None = None, n: int = 6) -> tuple[Params, Seen]:
    """The gradient on a batch, from other parameters than the start."""
    x, y = samples(f.model.name if f.model.name == "lstm" else "mlp", n, KEY.at("batch"), torch.float64)
    start, held = begin(f, y.unique())
    with training(f.model.net, f.key):
        return gradient(f, moving or start, held, x, y, 0 if f.slices else None)


# ---- gradients
@pytest.mark.parametrize("case", [c for c in STOCK if c not in WATCHES])
@pytest.mark.parametrize("name", ["mlp", "cnn-group", "lstm"])
def test_the_gradient_is_that_of_finite_differences(name: str, case: str) -> None:
    f = requests(name, STOCK[case])[0]
    moving, _ = begin(f, torch.arange(5))
    grads, _ = at(f)
    for i in range(4):
        along = {k: torch.randn(v.shape, generator=KEY.at("along", i, k).torch()).double() for k, v in moving.items()}
        ahead, behind = (at(f, {k: v + d * along[k] for k, v in moving.items()})[1].total for d in (1e-6, -1e-6))
        slope = torch.stack([(g * along[k]).sum() for k, g in grads.items()]).sum()
        assert torch.allclose((ahead - behind) / 2e-6, slope, rtol=1e-6, atol=1e-7)


def test_the_proximal_term_is_nothing_at_the_anchor_and_pulls_towards_it() -> None:
    f = fit("cnn", start=weights(tiny("cnn"), KEY, torch.float64))
    near = replace(f, terms=(Proximal(0.3),), anchor=f.start)
    (plain, a), (pulled, b) = at(f), at(near)
    assert torch.equal(a.total, b.total) and all(torch.equal(g, pulled[k]) for k, g in plain.items())
    other = weights(tiny("cnn"), KEY.at("anchor"), torch.float64)
    pulled, b = at(replace(near, anchor=other))
    gap = {k: f.start[k] - other[k] for k in plain}
    assert torch.allclose(b.total - b.main, 0.15 * sum(v.pow(2).sum() for v in gap.values()))
    assert torch.equal(b.main, a.main)
    assert all(torch.allclose(pulled[k] - plain[k], 0.3 * v) for k, v in gap.items())
    assert gap.keys() == f.model.trainable  # statistics are not pulled


def test_absent_classes_get_no_gradient_and_have_no_say() -> None:
    f = fit("mlp", start=weights(tiny("mlp"), KEY, torch.float64), loss=SeenClasses())
    x, y = samples("mlp", 30, KEY.at("seen"), torch.float64)
    x, y = x[y != 3], y[y != 3]
    moving, held = begin(f, y.unique())
    grads, seen = gradient(f, moving, held, x, y)
    assert not grads["head.bias"][3].any() and not grads["head.weight"][3].any()
    assert all(bool(grads["head.bias"][c].any()) for c in (0, 1, 2, 4))
    loud = {k: v.index_fill(0, torch.tensor([3]), 50.0) if k.startswith("head") else v for k, v in moving.items()}
    assert torch.equal(gradient(f, loud, held, x, y)[1].main, seen.main)
    everything, _ = gradient(replace(f, loss=TaskLoss()), moving, held, x, y)
    assert everything["head.bias"][3].any()
    # who holds all classes has the task's loss
    moving, held = begin(f, torch.arange(5))
    assert torch.equal(
        gradient(f, moving, held, x, y)[1].main, gradient(replace(f, loss=TaskLoss()), moving, held, x, y)[1].main
    )


def test_the_mean_is_over_the_samples_that_exist() -> None:
    def step(weights: Tensor | None) -> Step:
        nothing: Any = None
        return Step(*[nothing] * 12, weights=weights)

    each, n = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1, 3, 0])
    some = torch.tensor([1.0, 1.0, 0.0])
    assert step(None).mean(each) == 3 and step(some).mean(each) == 1.5
    assert step(None).mean(each, n) == step(some).mean(each, n) == 7 / 4
    assert step(torch.zeros(3)).mean(each) == 0  # nobody is there: nothing, and not NaN


# ---- complete
def subclasses(base: type) -> Iterator[type]:
    for c in base.__subclasses__():
        yield c
        yield from subclasses(c)


@pytest.mark.parametrize(("base", "registry"), [(Term, TERMS), (View, VIEWS), (Watch, WATCHES)])
def test_every_part_of_a_step_is_registered_and_checked(base: type, registry: Mapping[str, type]) -> None:
    for module in pkgutil.walk_packages(fedquilt.parts.__path__, "fedquilt.parts."):
        import_module(module.name)
    ours = {c.__name__: c for c in subclasses(base) if c.__module__.startswith("fedquilt.")}
    assert dict(registry) == ours
    assert registry.keys() <= {name for case in STOCK for name in case.split(", ")}
    assert all(is_dataclass(c) and c.__dataclass_params__.frozen for c in ours.values())  # type: ignore[attr-defined]


def test_what_does_not_say_what_it_does_says_so() -> None:
    nothing: Any = None
    for base, n in ((Term, 1), (View, 3)):
        with pytest.raises(TypeError, match=f"{base.__name__} does not say"):
            base()(*[nothing] * n)
    with pytest.raises(TypeError, match="Watch does not say"):
        Watch().add(nothing, nothing, nothing)
    f = fit("mlp")
    assert Term().given(f, nothing) == View().given(f, nothing) == Watch().start(f) == Watch().see(nothing) == {}


# ---- plain data
def plain(value: object, where: str = "it") -> None:
    """Refuse what is not data: a function, a lambda, a generator, a module, an object of no known kind."""
    if value is None or isinstance(value, (bool, int, float, str, Tensor, Cover, Key, Model)):
        return  # a model travels by reference
    if isinstance(value, Mapping):
        for k, v in value.items():
            plain(k, f"{where}[{k}]")
            plain(v, f"{where}[{k}]")
    elif isinstance(value, (tuple, list, frozenset)):
        for i, v in enumerate(value):
            plain(v, f"{where}[{i}]")
    elif is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        for f in fields(value):
            plain(getattr(value, f.name), f"{where}.{f.name}")
    else:
        raise TypeError(f"{where} is not plain data: {type(value).__name__}")


@dataclass(frozen=True)
class Closure(Term):
    f: Any


@pytest.mark.parametrize("bad", [
    lambda x: x,
    plain,
    nn.Linear(1, 1),
    partial(int, "1"),
    (i for i in ()),
    object(),
    Term,
    {"a": [Closure(len)]},
])  # fmt: skip
def test_what_is_not_data_is_found(bad: object) -> None:
    with pytest.raises(TypeError, match="not plain data"):
        plain(replace(fit("mlp"), terms=(Closure(bad),)))


LOCALS: Mapping[str, Part] = {
    **{f"{name}()": build().local for name, build in METHODS.items()},
    "Train, whole": Train(epochs=Length(1, 2), keep="whole", freeze=True, finetune=1),
    "Train, own rows": Train(loss=SeenClasses(), own_rows=True, scaler=True),
    "Train, seconds": Train(SGD(0.1, 0.9, 0.01, 1.0), Length(1, 2, 1e-3), terms=(Proximal(0.1),), finetune=2),
}


def asked(local: Any, norm: str) -> list[Request]:
    """What a local asks for, when it works and when it serves."""
    m, run = tiny("cnn"), engine("cnn")
    server = held(weights(m), m, norm, [0.6])
    cover = travelling(m.prefix(0.6), m, norm, [0.6])
    o = order({k: s.take(server[k]) for k, s in cover.spans.items()}, cover, norm)
    o = replace(o, scalars={**o.scalars, "asks": "val_loss"})
    c = client(m, task("cnn"), Device(width=0.6), labels=torch.arange(4))
    _, memory = drive(run, local(o, c))
    drive(run, local.serve(o, replace(c, memory=memory)))
    return run.asked


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("local", LOCALS)
def test_every_request_of_every_stock_local_is_plain_data(local: str, norm: str) -> None:
    made = asked(LOCALS[local], norm)
    assert len(made) >= 2
    for request in made:
        assert isinstance(request, Request)
        plain(request)


def test_every_stock_local_is_among_them() -> None:
    ours = {c for c in vars(local_module).values() if isinstance(c, type) and hasattr(c, "serve")}
    assert ours == {type(v) for v in LOCALS.values()}


@pytest.mark.parametrize("case", PARTS)
def test_every_part_of_a_request_is_plain_data(case: str) -> None:
    for f in requests("cnn", PARTS[case]):
        plain(f)
        assert all(hash(t) == hash(replace(t)) and t == replace(t) for t in (f.loss, *f.terms, *f.watch))  # type: ignore[type-var]
        assert f.view is None or (hash(f.view) == hash(replace(f.view)) and f.view == replace(f.view))  # type: ignore[type-var]


@pytest.mark.parametrize("case", PARTS)
def test_a_step_writes_nothing_that_it_was_given(case: str) -> None:
    f = requests("cnn", PARTS[case])[0]
    x, y = samples("cnn", 6, KEY, torch.float64)
    moving, held = begin(f, y.unique())
    given = (moving, held, f.start, f.anchor, f.extra, f.model.net.state_dict())
    before = torch.utils._pytree.tree_map(Tensor.clone, given)
    with training(f.model.net, f.key):
        gradient(f, moving, held, x, y, 0 if f.slices else None)
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (before, given)), strict=True):
        assert torch.equal(a, b)
