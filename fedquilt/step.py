"""The one definition of a training step, whatever engine runs it.

:func:`objective` is tensors in, tensors out, and writes nothing in place: it runs as it is, or for
many clients at once under ``torch.func.vmap``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .cover import Params
from .fit import SGD, Fit, Fitted, Gradient
from .key import Key
from .norm import NORMS
from .term import Given, Output, Step, call

Layout = Callable[[Tensor], Tensor]


class Held(NamedTuple):
    """A client's tensors that no gradient reaches."""

    buffers: Params  # the net's statistics, by the names of the start
    peers: Mapping[str, Params]  # a teacher's tensors; the statistics of a peer that is trained
    anchor: Params
    given: tuple[Given, ...]  # of the loss, of the terms, of the view


class Seen(NamedTuple):
    """What a batch says: the objective, the loss alone, the statistics after it, and where tensors may move."""

    total: Tensor
    main: Tensor
    buffers: Params
    peers: Mapping[str, Params]
    moves: Params
    watched: tuple[Params, ...]


def begin(fit: Fit, labels: Tensor, laid: Layout = lambda t: t) -> tuple[Params, Held]:
    """What a training moves (extras as ``+name``, a peer's tensors as ``peer/name``), and what it holds."""
    trained = fit.model.trainable

    def copies(p: Params, keep: Callable[[str], bool]) -> Params:
        return {k: laid(p[k].detach()).clone() for k in sorted(p) if keep(k)}

    moving = copies(fit.start, trained.__contains__)
    moving |= {f"+{k}": v for k, v in copies(fit.extra, lambda k: True).items()}
    peers = {}
    for name, p in fit.peers.items():
        if p.train:
            moving |= {f"{name}/{k}": v for k, v in copies(p.params, p.own.__contains__).items()}
            peers[name] = copies(p.params, lambda k, p=p: k not in p.model.trainable)  # type: ignore[misc]
        else:
            peers[name] = copies(p.params, lambda k, p=p: k not in p.share)  # type: ignore[misc]
    lookers = (fit.loss, *fit.terms, *((fit.view,) if fit.view else ()))
    given = tuple(t.given(fit, labels) for t in lookers)
    return moving, Held(copies(fit.start, lambda k: k not in trained), peers, fit.anchor, given)


def part(moving: Params, prefix: str) -> Params:
    """What of the moving tensors has this prefix, without it."""
    return {k[len(prefix) :]: v for k, v in moving.items() if k.startswith(prefix)}


def objective(
    fit: Fit, moving: Params, held: Held, x: Tensor, y: Tensor, weights: Tensor | None = None, pick: int | None = None
) -> Seen:
    """The objective on a batch; ``weights`` is 0 for padding, ``pick`` says which slice was drawn."""
    net, looks = fit.model.net, any(t.features for t in (fit.loss, *fit.terms))
    stages = fit.model.features if looks else ()
    params, extra = {k: moving[k] for k in moving if k in fit.model.trainable}, part(moving, "+")
    used, moves = (params, Params()) if fit.view is None else fit.view(params, extra, held.given[-1])
    out, ran, before, buffers = through(fit, used, held.buffers, x, stages, pick)
    beside = None
    if fit.slices is not None and pick is not None:
        moves = both(moves, reach(fit, pick))
        if (also := fit.slices.beside) is not None:
            beside = out
            if also != pick:
                beside, _, _, buffers = through(fit, used, buffers, x, stages, also)
    said: dict[str, Output] = {}
    peers = dict(held.peers)

    def run(q: Params) -> Output:
        return call(net, q | {k: v.clone() for k, v in before.items() if k not in q}, x, stages)

    def peer(name: str) -> Output:
        if name not in said:
            said[name], peers[name] = aside(fit, name, moving, held, x, looks)
        return said[name]

    def step(given: Given) -> Step:
        return Step(fit.task, params, extra, ran, held.anchor, given, x, y, out, run, peer, beside, weights)

    main = fit.loss(step(held.given[0]))
    total = main if fit.main == 1 else fit.main * main
    for t, given in zip(fit.terms, held.given[1:], strict=False):
        total = total + t(step(given))
    watched = tuple(w.see(step({})) for w in fit.watch)
    return Seen(total, main, buffers, {name: peers[name] for name, p in fit.peers.items() if p.train}, moves, watched)


def through(
    fit: Fit, used: Params, buffers: Params, x: Tensor, stages: tuple[str, ...], pick: int | None
) -> tuple[Output, Params, Params, Params]:
    """The net on a batch: its output, the weights and statistics that it ran on, and all statistics after it."""
    if fit.slices is None or pick is None:
        after = {k: v.clone() for k, v in buffers.items()}
        return call(fit.model.net, used | after, x, stages), used, buffers, after
    cover, own = fit.slices.covers[pick], fit.slices.own[pick]
    weights = {k: cover[k].take(used[k]) for k in own if k in used}
    before = {k: cover[name].take(buffers[name]) for k, name in own.items() if k not in used}
    stats = {k: v.clone() for k, v in before.items()}
    out = call(fit.model.net, weights | stats, x, stages)
    after = buffers | {own[k]: cover[own[k]].put(buffers[own[k]], v) for k, v in stats.items()}
    return out, weights, before, after


def reach(fit: Fit, pick: int) -> Params:
    """Where the tensors that a slice cuts may move: in the drawn one, and in the one beside it."""
    assert fit.slices is not None
    inside, also = fit.slices.inside, fit.slices.beside
    drawn = {k: m for k, m in inside[pick].items() if k in fit.model.trainable}
    return drawn if also is None else {k: m | inside[also][k] for k, m in drawn.items() if k in inside[also]}


def aside(fit: Fit, name: str, moving: Params, held: Held, x: Tensor, looks: bool) -> tuple[Output, Params]:
    """Another net on the batch, and its held tensors after it."""
    p = fit.peers[name]
    fixed = {k: v if k in p.model.trainable else v.clone() for k, v in held.peers[name].items()}
    tensors = fixed | part(moving, name + "/") | {k: moving[m] for k, m in p.share.items()}
    stages = p.model.features if looks else ()
    if p.train:
        with mode(p.model.net, train=True):
            return call(p.model.net, tensors, x, stages), fixed
    with mode(p.model.net, train=False, batch=not NORMS[fit.norm].running), torch.no_grad():
        return call(p.model.net, tensors, x, stages), fixed


def both(a: Params, b: Params) -> Params:
    """Where both allow a tensor to move; a tensor that is not named may move everywhere."""
    return a | {k: m & a[k] if k in a else m for k, m in b.items()}


def gradient(
    fit: Fit, moving: Params, held: Held, x: Tensor, y: Tensor, pick: int | None = None
) -> tuple[Params, Seen]:
    """The gradient of the objective for all that needs one, and what was seen, cut off from the graph."""
    leaves = {k: v.detach().requires_grad_(k not in fit.still) for k, v in moving.items()}
    seen = objective(fit, leaves, held, x, y, pick=pick)
    names = [k for k in leaves if k not in fit.still]
    grads = torch.autograd.grad(seen.total, [leaves[k] for k in names], materialize_grads=True) if names else ()
    return dict(zip(names, grads, strict=True)), _detached(seen)


def curvature(g: Gradient, moving: Params, held: Held, x: Tensor, y: Tensor) -> tuple[Params, Params, Seen]:
    """The gradient, and the Hessian times ``along`` (tensors that it does not name count as zero)."""
    if g.along is None:
        grads, seen = gradient(g.fit, moving, held, x, y)
        return grads, {}, seen
    leaves = {k: v.detach().requires_grad_() for k, v in moving.items()}
    seen = objective(g.fit, leaves, held, x, y)
    values = list(leaves.values())
    first = torch.autograd.grad(seen.total, values, create_graph=True, materialize_grads=True)
    dot = torch.stack([(d * g.along[k]).sum() for k, d in zip(leaves, first, strict=True) if k in g.along]).sum()
    if dot.requires_grad:
        twice = torch.autograd.grad(dot, values, materialize_grads=True)
    else:  # the loss is linear
        twice = tuple(torch.zeros_like(v) for v in values)
    grads = {k: d.detach() for k, d in zip(leaves, first, strict=True)}
    return grads, dict(zip(leaves, twice, strict=True)), _detached(seen)


def _detached(seen: Seen) -> Seen:
    def cut(p: Params) -> Params:
        return {k: v.detach() for k, v in p.items()}

    peers = {name: cut(p) for name, p in seen.peers.items()}
    watched = tuple(map(cut, seen.watched))
    return Seen(seen.total.detach(), seen.main.detach(), cut(seen.buffers), peers, cut(seen.moves), watched)


def descend(optim: SGD, params: Params, grads: Params, speed: Params, moves: Params) -> None:
    """One update in place.  What may not move does not, by a single bit: no gradient, decay or momentum.

    The order is torch's: clip the gradient, add the decay, then the momentum.  A coordinate that may
    not move in this step keeps its momentum as it is.
    """
    with torch.no_grad():
        grads = {k: torch.where(moves[k], g, 0) if k in moves else g for k, g in grads.items()}
        if optim.clip is not None and grads:
            size = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads.values()]))
            scale = (optim.clip / (size + 1e-6)).clamp(max=1.0)
            grads = {k: g * scale for k, g in grads.items()}
        for k, g in grads.items() if optim.weight_decay or optim.momentum else ():
            if optim.weight_decay:
                g = g.add(params[k], alpha=optim.weight_decay)
            if optim.momentum:
                g = speed[k].mul(optim.momentum).add_(g)
                speed[k].copy_(torch.where(moves[k], g, speed[k]) if k in moves else g)
            grads[k] = torch.where(moves[k], g, 0) if k in moves else g
        if grads:
            torch._foreach_add_([params[k] for k in grads], [*grads.values()], alpha=-optim.lr)


@dataclass(eq=False)
class Training:
    """One request for training while it is answered: tensors that are written in place."""

    fit: Fit
    moving: Params
    held: Held
    speed: Params
    watched: list[Params]

    @staticmethod
    def of(fit: Fit, labels: Tensor, laid: Layout = lambda t: t) -> Training:
        """Before the first step."""
        moving, held = begin(fit, labels, laid)
        speed = {k: torch.zeros_like(v) for k, v in moving.items()} if fit.optim.momentum else {}
        watched = [w.start(fit) for w in fit.watch]
        names = [k for w in watched for k in w]
        if len(set(names)) < len(names):
            raise ValueError(f"two watches give results of the same name: {sorted(names)}")
        return Training(fit, moving, held, speed, watched)

    def step(self, x: Tensor, y: Tensor, pick: int | None = None) -> Tensor:
        """One update in place; the loss before it."""
        f = self.fit
        grads, seen = gradient(f, self.moving, self.held, x, y, pick)
        if NORMS[f.norm].update:
            before = self.held.buffers
            after = {k: torch.where(f.thawed[k], v, before[k]) if k in f.thawed else v for k, v in seen.buffers.items()}
            self.held = self.held._replace(buffers=after, peers={**self.held.peers, **seen.peers})
        self.watched = [w.add(s, v, grads) for w, s, v in zip(f.watch, self.watched, seen.watched, strict=True)]
        grads = {k: g + f.correct[k] if k in f.correct else g for k, g in grads.items()}
        descend(f.optim, self.moving, grads, self.speed, both(f.moves, seen.moves))
        return seen.main

    def tensors(self) -> Params:
        """The net as it now is."""
        return {k: v for k, v in self.moving.items() if k in self.fit.model.trainable} | self.held.buffers

    def result(self, loss: float, steps: int, samples: int) -> Fitted:
        """What the training gave."""
        f = self.fit
        after = self.tensors()
        peers = {}
        for name, p in f.peers.items():
            if p.train:
                own = self.held.peers[name] | part(self.moving, name + "/")
                peers[name] = {k: v.contiguous() for k, v in (own | {k: after[m] for k, m in p.share.items()}).items()}
        watched = {k: v for w in self.watched for k, v in w.items()}
        params = {k: after[k].contiguous() for k in f.start}
        return Fitted(params, loss, steps, samples, part(self.moving, "+"), peers, watched)


# ---- modes of a net
@contextlib.contextmanager
def mode(net: nn.Module, train: bool, batch: bool = False) -> Iterator[None]:
    """The net in training or in evaluation mode (with ``batch``, normalised by the batch at hand); then as it was."""
    before = [(m, m.training) for m in net.modules()]
    net.train(train)
    for m in normalising(net) if batch else ():
        m.train()
    try:
        yield
    finally:
        for m, was in before:
            m.training = was


@contextlib.contextmanager
def training(net: nn.Module, key: Key) -> Iterator[None]:
    """Training mode; dropout, where a net has it, draws from the request's own key."""
    with torch.random.fork_rng(devices=[]), mode(net, train=True):
        torch.default_generator.manual_seed(key.at("dropout").number())
        yield


def normalising(net: nn.Module) -> list[Any]:
    """The layers that have running statistics, of whatever class."""
    return [m for m in net.modules() if isinstance(getattr(m, "running_mean", None), Tensor)]
