"""A check, not a habit: what looks at a training step runs for many clients at once and says to each its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedquilt.cover import Params
from fedquilt.fit import Fit, Peer, Slices, Step, Term
from fedquilt.key import Key
from fedquilt.parts.depth import Mutual
from fedquilt.parts.distil import Attention, Distil, PeerLoss, SelfDistil
from fedquilt.parts.gated import GroupLasso
from fedquilt.parts.learned import Importance, Masked, made
from fedquilt.parts.personal import Blended
from fedquilt.parts.reconfigure import Powers, prunable
from fedquilt.parts.terms import Proximal, Scaler, SeenClasses, SquaredLoss, TaskLoss
from fedquilt.step import Held, Seen, begin, gradient, objective, training
from fedquilt.types import Handle

from ..engine.tiny import KEY, close, samples, task, tiny, weights

SIZES = (5, 3, 7)  # samples of each client's batch
NETS = ("mlp", "cnn-group", "cnn", "resnet", "lstm")
Build = Callable[[str, Key], dict[str, Any]]


# ---- one of each: the settings of a request, for a net and a client
def numbers(name: str, key: Key) -> Params:
    return weights(tiny(name), key, torch.float64)


def term(t: Term) -> Build:
    return lambda name, key: {"terms": (t,), "anchor": numbers(name, key.at("anchor"))}


def blend(name: str, key: Key) -> Params:
    own = {k: v for k, v in numbers(name, key.at("own")).items() if k in tiny(name).trainable}
    return {**own, "alpha": torch.tensor(0.2 + 0.6 * key.uniform(), dtype=torch.float64)}


def peers(name: str, key: Key) -> dict[str, Peer]:
    return {
        "teacher": Peer(tiny(name), numbers(name, key.at("teacher"))),
        "fresh": Peer(tiny(name), numbers(name, key.at("fresh")), True, {"head.bias": "head.bias"}),
    }


def taught(make: Callable[[str], Term]) -> Build:
    return lambda name, key: {"peers": peers(name, key), "terms": (make(name),)}


def scores(name: str, key: Key) -> dict[str, Any]:
    m = tiny(name)
    extra = {g: torch.rand(n, generator=key.at(g).torch(), dtype=torch.float64) for g, n in m.groups.items()}
    # as many units as the client has means for: not the same for all
    keep = {f"keep/{g}": torch.tensor(1 + key.number() % n) for g, n in m.groups.items()}
    places = made(m)
    return {"view": Masked.of(m), "extra": extra, "anchor": keep, "terms": (Importance(0.3, places),)}


def sliced(name: str, key: Key) -> dict[str, Any]:
    covers = tuple(tiny(name).prefix(r) for r in (0.5, 0.8))
    return {"slices": Slices(covers, key, beside=1), "terms": (SelfDistil(0.4),)}


STOCK: Mapping[str, Build] = {
    "TaskLoss": lambda name, key: {"loss": TaskLoss()},
    "Proximal": term(Proximal(0.3)),
    "SeenClasses": lambda name, key: {"loss": SeenClasses()},
    "SquaredLoss": lambda name, key: {"watch": (SquaredLoss(),)},
    "Scaler": lambda name, key: {"view": Scaler.of(tiny(name), 0.4)},
    "SelfDistil": sliced,
    "Mutual": lambda name, key: {"terms": (Mutual(tiny(name).exits, 0.7),)},
    "GroupLasso": lambda name, key: {"terms": (GroupLasso.of(tiny(name), 0.3),)},
    "Powers": lambda name, key: {"watch": (Powers(prunable(tiny(name)), 2),)},
    "Masked, Importance": scores,
    "Blended": lambda name, key: {"terms": (Blended(),), "extra": blend(name, key)},
    "Distil": taught(lambda name: Distil("teacher", 0.2)),
    "Attention": taught(lambda name: Attention.of(tiny(name), "teacher", 0.3)),
    "PeerLoss": taught(lambda name: PeerLoss("fresh", 0.5)),
}
PARTS = STOCK
ONLY = {"Mutual": ("mlp-exits",), "SelfDistil": ("mlp", "cnn", "resnet", "lstm")}
CASES = [(name, case) for case in PARTS for name in ONLY.get(case, NETS)]


def requests(name: str, build: Build) -> list[Fit]:
    """One client's request each."""
    out = []
    for i in range(3):
        key = KEY.at("client", i)
        out.append(Fit(tiny(name), task(name), numbers(name, key), Handle(i, "train"), key, **build(name, key)))
    return out


# ---- one by one, and all at once
Batch = tuple[Tensor, Tensor, Tensor | None]


def padded(x: Tensor, y: Tensor, n: int) -> Batch:
    """The batch with rubbish behind it, and what each sample weighs."""
    more = n - len(x)
    rubbish = x.flip(0).repeat(3, *[1] * (x.dim() - 1))[:more]
    if x.is_floating_point():
        rubbish = rubbish * 100 + 7
    w = torch.cat([torch.ones(len(x)), torch.zeros(more)]).double()
    return torch.cat([x, rubbish]), torch.cat([y, y.flip(0).repeat(3, *[1] * (y.dim() - 1))[:more]]), w


def alone(f: Fit, x: Tensor, y: Tensor) -> tuple[Params, Seen]:
    """As the serial engine does it."""
    moving, held = begin(f, y.unique())
    with training(f.model.net, f.key):
        return gradient(f, moving, held, x, y, 0 if f.slices else None)


def together(fits: list[Fit], labels: list[Tensor], batches: list[Batch]) -> tuple[list[Params], list[Seen]]:
    """All clients in one program, and what it says to each."""
    begun = [begin(f, y) for f, y in zip(fits, labels, strict=True)]
    moving, held = tree_map(lambda *t: torch.stack(t), *begun)
    x, y = (torch.stack([b[i] for b in batches]) for i in (0, 1))  # type: ignore[misc]
    w = None if batches[0][2] is None else torch.stack([b[2] for b in batches])  # type: ignore[misc]
    leaves = {k: v.requires_grad_() for k, v in moving.items()}
    f, pick = fits[0], 0 if fits[0].slices else None

    def one(moving: Params, held: Held, x: Tensor, y: Tensor, w: Tensor | None) -> Seen:
        return objective(f, moving, held, x, y, w, pick)

    dims = (0, 0, 0, 0, None if w is None else 0)
    with training(f.model.net, f.key):
        seen = torch.func.vmap(one, in_dims=dims)(leaves, held, x, y, w)
    grads = torch.autograd.grad(seen.total.sum(), list(leaves.values()), materialize_grads=True)
    each = [tree_map(lambda t, i=i: t[i].detach(), seen) for i in range(3)]
    return [dict(zip(leaves, (g[i] for g in grads), strict=True)) for i in range(3)], each


def agree(name: str, build: Build, pad: bool = False) -> None:
    """Each client's own value, gradient, statistics and sums, at once as alone."""
    fits = requests(name, build)
    data = [samples(name, n if pad else 5, KEY.at(i), torch.float64) for i, n in enumerate(SIZES)]
    one_by_one = [alone(f, x, y) for f, (x, y) in zip(fits, data, strict=True)]
    batches = [padded(x, y, 9) if pad else (x, y, None) for x, y in data]
    grads, seen = together(fits, [y.unique() for _, y in data], batches)
    for f, (g, s), g2, s2 in zip(fits, one_by_one, grads, seen, strict=True):
        assert close(g, g2, 12)
        # statistics are the net's, not the term's: padding is for a batched engine to keep out of them
        s, s2 = (v._replace(buffers={}, peers={}) if pad else v for v in (s, s2))
        pairs = list(zip(tree_leaves(s), tree_leaves(s2), strict=True))
        assert all(torch.allclose(a.double(), b.double(), rtol=1e-12, atol=1e-12) for a, b in pairs)
        for watch, a, b in zip(f.watch, s.watched, s2.watched, strict=True):
            assert close(watch.add(watch.start(f), a, g), watch.add(watch.start(f), b, g2), 12)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_each_runs_for_many_clients_at_once_and_says_to_each_its_own(name: str, case: str, strict_vmap: None) -> None:
    agree(name, PARTS[case])


@pytest.mark.parametrize(("name", "case"), [(n, c) for n, c in CASES if n in ("mlp", "cnn-group", "lstm")])
def test_padding_changes_nothing(name: str, case: str, strict_vmap: None) -> None:
    agree(name, PARTS[case], pad=True)


def test_a_watch_adds_up_for_many_clients_at_once(strict_vmap: None) -> None:
    for case in (c for c in PARTS if c == "Powers"):
        fits = requests("mlp", PARTS[case])
        data = [samples("mlp", 5, KEY.at(i), torch.float64) for i in range(3)]
        done = [alone(f, x, y) for f, (x, y) in zip(fits, data, strict=True)]
        for i, watch in enumerate(fits[0].watch):
            inputs = [(watch.start(f), s.watched[i], g) for f, (g, s) in zip(fits, done, strict=True)]
            all_at_once = torch.func.vmap(watch.add)(*tree_map(lambda *t: torch.stack(t), *inputs))
            assert all(
                close(watch.add(*v), {k: t[j] for k, t in all_at_once.items()}, 12) for j, v in enumerate(inputs)
            )


# ---- what would not be caught is not checked
@dataclass(frozen=True)
class Item(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.out.logits.sum() * s.out.logits.max().item()


@dataclass(frozen=True)
class Branch(Term):
    def __call__(self, s: Step) -> Tensor:
        total = s.mean(s.out.logits.flatten(1).sum(1))
        return total if total > 0 else -total


@dataclass(frozen=True)
class Draws(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.mean((s.out.logits * torch.rand_like(s.out.logits)).flatten(1).sum(1))


@dataclass(frozen=True)
class DrawsFromAKey(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.out.logits.sum() * 0 + torch.rand((), generator=Key(0).torch())


@dataclass(frozen=True)
class DrawsElsewhere(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.mean(s.out.logits.flatten(1).sum(1)) * float(np.random.default_rng().random())


@dataclass(frozen=True)
class OwnMean(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.out.logits.pow(2).sum(1).mean()


@dataclass(frozen=True)
class LossMean(Term):
    def __call__(self, s: Step) -> Tensor:
        return F.cross_entropy(s.out.logits, s.y)


@dataclass(frozen=True)
class Picks(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.out.logits[s.y == s.y.max()].sum()


@dataclass(frozen=True)
class Loops(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.mean(F.kl_div(s.out.logits.log_softmax(1), s.out.logits.softmax(1), reduction="none").sum(1))


@dataclass(frozen=True)
class Listed(Term):
    def __call__(self, s: Step) -> Tensor:
        return s.out.logits.sum() * len(s.y.unique())


BAD: Mapping[Term, str] = {
    Item(): "item",
    Branch(): "data-dependent control flow",
    Draws(): "random",
    DrawsFromAKey(): "random|generator",
    DrawsElsewhere(): "close",
    OwnMean(): "close",
    LossMean(): "close",
    Picks(): "nonzero|index",
    Loops(): "fallback|batching rule",
    Listed(): "unique|batching rule",
}


@pytest.mark.parametrize("bad", BAD, ids=lambda t: type(t).__name__)
def test_a_term_that_does_not_keep_the_rules_is_caught(bad: Term, strict_vmap: None) -> None:
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError), match=BAD[bad]):
        agree("mlp", term(bad))
        agree("mlp", term(bad), pad=True)
