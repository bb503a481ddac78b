"""Each term, view and watch for itself: its gradient, its law, and that it and every request are plain data."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedquilt.parts
from fedquilt.cover import Cover, Params
from fedquilt.fit import SGD, Fit, Request, Step, TaskLoss, Term, View, Watch
from fedquilt.fleet import Device, Fleet
from fedquilt.key import Key
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.model import Model
from fedquilt.norm import NORMS
from fedquilt.parts.gated import GroupLasso
from fedquilt.parts.local import Length, Train
from fedquilt.parts.reconfigure import WATCHES
from fedquilt.parts.resized import Lessons
from fedquilt.parts.send import Ordered
from fedquilt.parts.terms import Proximal, SeenClasses
from fedquilt.parts.threefold import Threefold
from fedquilt.step import Seen, begin, gradient, training
from fedquilt.task import Classification, NextToken, Regression, Task
from fedquilt.types import Local, Memory

from ..engine.tiny import KEY, client, drive, engine, fit, samples, task, tiny, weights
from .test_vmap import PARTS, STOCK, requests


def at(f: Fit, moving: Params | None = None, n: int = 6) -> tuple[Params, Seen]:
    """The gradient on a batch, from other parameters than the start."""
    x, y = samples(f.model.name if f.model.name == "lstm" else "mlp", n, KEY.at("batch"), torch.float64)
    start, held = begin(f, y.unique())
    with training(f.model.net, f.key):
        return gradient(f, moving or start, held, x, y, 0 if f.slices else None)


# ---- gradients
STOPPED = {"Blended": "+"}  # where the gradient is stopped on purpose, only what has this prefix is the slope


TAUGHT = (
    "SelfDistil",
    "Mutual",
    "Masked, Importance",
)  # a teacher is cut off, a mask has the slope of its scores: not that of the value


@pytest.mark.parametrize("case", [c for c in STOCK if c not in (*WATCHES, *TAUGHT)])
@pytest.mark.parametrize("name", ["mlp", "cnn-group", "lstm"])
def test_the_gradient_is_that_of_finite_differences(name: str, case: str) -> None:
    f = requests(name, STOCK[case])[0]
    moving, _ = begin(f, torch.arange(5))
    grads, _ = at(f)
    names = [k for k in moving if k.startswith(STOPPED.get(case, ""))]
    for i in range(4):
        along = {k: torch.randn(moving[k].shape, generator=KEY.at("along", i, k).torch()).double() for k in names}
        sides = ({k: v + d * along.get(k, 0.0) for k, v in moving.items()} for d in (1e-6, -1e-6))
        ahead, behind = (at(f, p)[1].total for p in sides)
        slope = torch.stack([(grads[k] * along[k]).sum() for k in names]).sum()
        assert torch.allclose((ahead - behind) / 2e-6, slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "shape"), [(Classification(5), (4, 5)), (NextToken(5, (0,)), (4, 3, 5)), (Regression(), (4, 2))]
)
def test_a_divergence_is_least_where_both_agree_and_has_the_slope_of_finite_differences(
    kind: Task, shape: tuple[int, ...]
) -> None:
    out, teacher, along = (torch.randn(shape, generator=KEY.at(w).torch()).double() for w in "abc")
    y = torch.randn(shape) if isinstance(kind, Regression) else torch.arange(out[..., 0].numel()).view(shape[:-1]) % 5

    def far(x: Tensor) -> Tensor:
        each, weight = kind.divergence(x, teacher, y)
        return (each * (1 if weight is None else weight)).sum()

    leaf = out.clone().requires_grad_()
    [slope] = torch.autograd.grad(far(leaf), leaf)
    assert torch.allclose((far(out + 1e-6 * along) - far(out - 1e-6 * along)) / 2e-6, (slope * along).sum(), rtol=1e-6)
    leaf = teacher.clone().requires_grad_()
    [slope] = torch.autograd.grad(far(leaf), leaf)
    assert far(teacher).abs() < 1e-12 and slope.abs().max() < 1e-12 and far(out) > 0
    if isinstance(kind, Classification):
        want = torch.nn.functional.kl_div(out.log_softmax(1), teacher.softmax(1), reduction="sum")
        assert torch.allclose(far(out), want)


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


def test_the_group_lasso_pulls_each_structure_by_its_length_and_zero_not_at_all() -> None:
    start = weights(tiny("mlp"), KEY, torch.float64)
    first = next(k for k in start if start[k].dim() == 2 and not k.startswith("head"))
    start[first] = start[first].index_fill(0, torch.tensor([1]), 0.0)
    f = fit("mlp", start=start)
    (plain, _), (pulled, seen) = at(f), at(replace(f, terms=(GroupLasso(((first, 0),), 0.3),)))
    rows = start[first].norm(dim=1, keepdim=True)
    assert torch.allclose(seen.total - seen.main, 0.3 * rows.sum())
    want = 0.3 * torch.where(rows > 0, start[first] / rows.clamp(min=1e-30), 0.0)
    assert torch.allclose(pulled[first] - plain[first], want) and want.any() and pulled[first].isfinite().all()


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


def stock_modules() -> list[Any]:
    names = [m.name for m in pkgutil.walk_packages(fedquilt.parts.__path__, "fedquilt.parts.")]
    return [import_module(name) for name in names]


@pytest.mark.parametrize(("base", "name"), [(Term, "TERMS"), (View, "VIEWS"), (Watch, "WATCHES")])
def test_every_part_of_a_step_is_registered_and_checked(base: type, name: str) -> None:
    registry = {k: c for m in stock_modules() for k, c in getattr(m, name, {}).items()}
    ours = {c.__name__: c for c in subclasses(base) if c.__module__.startswith("fedquilt.")}
    assert registry == ours, f"every {base.__name__} is listed in the {name} of its module"
    checked = {name for case in STOCK for name in case.split(", ")}
    assert registry.keys() <= checked, f"every {base.__name__} has an example in test_vmap.STOCK"
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


def whole(**settings: Any) -> Method:
    return Method("train", send=Ordered(), local=Train(**settings))


OTHERS = {
    "whole": whole(epochs=Length(1, 2), keep="whole", freeze=True, finetune=1),
    "own rows": whole(loss=SeenClasses(), own_rows=True, scaler=True),
    "seconds": whole(optim=SGD(0.1, 0.9, 0.01, 1.0), epochs=Length(1, 2, 1e-3), terms=(Proximal(0.1),), finetune=2),
}
THREE = Threefold()
CLASSES = {
    "sufficient": Method("sufficient", local=THREE.sufficient),
    "insufficient": Method("insufficient", local=THREE.insufficient),
    "colossal": Method("colossal", local=THREE.colossal),
    "pilot": Method("pilot", local=replace(THREE.colossal, lessons=Lessons(halting="theorem"))),
}
SEEDS = {f"{n}, seed": b(variant="seed") for n, b in METHODS.items() if "variant" in signature(b).parameters}
STOCK_METHODS = (
    {name: build() for name, build in METHODS.items()}
    | SEEDS
    | CLASSES
    | {f"{name}, {norm}": replace(m, norm=norm) for name, m in OTHERS.items() for norm in NORMS}
)


def asked(method: Method) -> list[Request]:
    """What a method's local asks for: in two rounds, and when it serves."""
    model, run = tiny("cnn"), engine("cnn")
    fleet = Fleet({0: Device(width=0.6)}, {0: 10})
    state = method.begin(model, fleet)
    memory = Memory()
    for r in range(2):
        o = method.order(replace(state, round=r), 0, fleet, model, KEY)
        o = replace(o, scalars={**o.scalars, "asks": "val_loss"})
        c = client(model, task("cnn"), fleet.devices[0], labels=torch.arange(4), memory=memory)
        _, memory = drive(run, method.local(o, c))
        drive(run, method.local.serve(o, replace(c, memory=memory)))
    return run.asked


@pytest.mark.parametrize("name", STOCK_METHODS)
def test_every_request_of_every_stock_local_is_plain_data(name: str) -> None:
    made = asked(STOCK_METHODS[name])
    assert len(made) >= 4
    for request in made:
        assert isinstance(request, Request)
        plain(request)


def test_every_stock_local_is_among_them() -> None:
    classes = {c for m in stock_modules() for c in vars(m).values() if isinstance(c, type) and hasattr(c, "serve")}
    ours = {c for c in classes if any("__call__" in vars(b) for b in c.__mro__)}  # one without is a base of others
    assert ours - {Local} == {type(m.local) for m in STOCK_METHODS.values()}


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
