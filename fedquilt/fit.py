"""Training as a value: what local work asks for, and the one definition of a training step.

A local is a generator that yields requests and receives results.  Whoever runs it decides how: one
after another, in a worker process, or many clients in one batched program.  So a request is plain
data (frozen dataclasses and tensors, no closures), and everything inside a step is tensors in,
tensors out: a term, a view or a watch may not look at a value (``.item()``, ``if tensor``), make
randomness, or average over samples by itself (use ``step.mean``).  ``tests/laws/test_vmap.py`` runs
each of them under ``torch.func.vmap`` with its fallback switched off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .cover import Cover, Params, put, take
from .key import Key
from .model import Model
from .task import Tally, Task
from .types import Handle

Given = dict[str, Tensor]


# ---- what a step may see, and what may look at it
@dataclass(frozen=True, eq=False)
class Output:
    """What a net says about a batch: its output, and the outputs of its stages if a term asked."""

    logits: Tensor
    features: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Step:
    """One client, one mini-batch."""

    task: Task
    params: Params  # what is trained, by the net's own names
    extra: Params  # what is trained besides: scores, mixing weights
    used: Params  # what the net ran on: params, or what a view made of them
    anchor: Params
    given: Given  # this client's constants, from Term.given
    x: Tensor
    y: Tensor
    out: Output
    run: Callable[[Params], Output]  # the net on other parameters, no statistics moved
    peer: Callable[[str], Output]  # another net of the request, on this batch
    weights: Tensor | None = None  # 0 for samples that only pad the batch

    def mean(self, each: Tensor, weight: Tensor | None = None) -> Tensor:
        """The average over the samples that exist."""
        if weight is not None and self.weights is not None:
            weight = weight * self.weights
        elif weight is None:
            weight = self.weights
        if weight is None:
            return each.mean()
        return (each * weight).sum() / weight.sum().clamp(min=1e-12)


class Term:
    """A summand of the objective: a frozen dataclass of plain settings, so that equal terms share a batch."""

    features: bool = False  # does it look at the outputs of stages?

    def given(self, fit: Fit, labels: Tensor) -> Given:
        """This client's constants; once a request, any Python is allowed here."""
        return {}

    def __call__(self, s: Step) -> Tensor:
        """The term's value on a batch."""
        raise TypeError(f"{type(self).__name__} does not say what it adds")


@dataclass(frozen=True)
class TaskLoss(Term):
    """The loss of the task, on what the net says."""

    def __call__(self, s: Step) -> Tensor:
        """The mean over the batch."""
        return s.mean(*s.task.loss(s.out.logits, s.y))


class View(Protocol):
    """What the net runs on instead of the plain parameters, and what of them may move in this step.

    A differentiable function of parameters and extras: scaled weights, weights under a trained
    mask.  The second value is a 0/1 tensor for each tensor that must not move everywhere.
    """

    def __call__(self, params: Params, extra: Params) -> tuple[Params, Params]: ...


class Watch(Protocol):
    """Something added up over the steps (squared gradients, squared losses), by name of the result."""

    def start(self, fit: Fit) -> Params: ...
    def add(self, so_far: Params, s: Step, grads: Params) -> Params: ...


@dataclass(frozen=True)
class Slices:
    """Another sub-model at each step: one of ``covers`` is drawn, only its coordinates run and move.

    ``names[i]`` is the suffix of the statistics that cover ``i`` uses (``@0.4``), empty for the plain ones.
    """

    covers: tuple[Cover, ...]
    key: Key
    names: tuple[str, ...] = ()

    def at(self, step: int) -> int:
        """Which cover the step uses."""
        return int(torch.randint(len(self.covers), (), generator=self.key.at("slice", step).torch()))


@dataclass(frozen=True, eq=False)
class Peer:
    """Another net of a request: a teacher (as it is), or one trained along with the main net.

    ``share`` maps names of its tensors to names of the main net's: those are one and the same.
    """

    model: Model
    params: Params
    train: bool = False
    share: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent; ``clip`` bounds the gradient's norm, ``decay`` shrinks lr every round."""

    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    decay: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is a number, at least 0, not {getattr(self, name)}")

    def at(self, round: int) -> SGD:
        """The same, with the learning rate of this round."""
        return SGD(self.lr * self.decay**round, self.momentum, self.weight_decay, self.clip)


# ---- the requests
@dataclass(frozen=True, eq=False)
class Fit:
    """Train ``model`` from ``start``: everything that this needs, as a value.

    ``free`` says which coordinates may move (None: all); ``slices`` and ``view`` change that at
    each step; ``correct`` is added to the gradient; ``epochs`` or ``steps`` say how long (with
    ``steps`` the epochs go on as long as it takes), and ``flops`` is a budget that may end it
    earlier, after one step at least.  Under ``post-hoc`` a request ends with the statistics of the
    final weights, so one of no epochs is a calibration.
    """

    model: Model
    task: Task
    start: Params
    data: Handle
    key: Key
    optim: SGD = SGD()
    epochs: int = 1
    steps: int | None = None
    flops: float | None = None
    batch: int = 32
    norm: str = "shared"
    loss: Term = TaskLoss()
    terms: tuple[Term, ...] = ()
    anchor: Params = field(default_factory=dict)
    free: Cover | None = None
    slices: Slices | None = None
    view: View | None = None
    extra: Params = field(default_factory=dict)
    correct: Params = field(default_factory=dict)
    peers: Mapping[str, Peer] = field(default_factory=dict)
    watch: tuple[Watch, ...] = ()

    def order(self, epoch: int, n: int) -> Tensor:
        """The order of the samples in an epoch; the same in every engine."""
        return self.key.at("epoch", epoch).permutation(n)

    def length(self, n: int) -> tuple[int, int]:
        """Epochs to go through, and steps in all, for ``n`` samples."""
        a_pass = -(-n // self.batch) if n else 0
        if self.steps is None:
            return self.epochs, self.epochs * a_pass
        return (-(-self.steps // a_pass) if a_pass else 0), (self.steps if a_pass else 0)

    @cached_property
    def moves(self) -> Params:
        """For each trainable tensor that is not wholly free, where it may move."""
        if self.free is None:
            return {}
        out = {}
        for k in sorted(self.model.trainable):
            if k not in self.free:
                out[k] = torch.zeros(self.start[k].shape, dtype=torch.bool)
            elif self.free[k].kind != "whole":
                out[k] = self.free[k].dense()
        return out


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Score ``params`` on data: the task's tally."""

    model: Model
    task: Task
    params: Params
    data: Handle
    norm: str = "shared"


@dataclass(frozen=True, eq=False)
class Gradient:
    """The gradient at ``params``, on ``batch`` random samples of the data (None: on all of them).

    With ``along`` also the Hessian times that vector, on the same samples.
    """

    model: Model
    task: Task
    params: Params
    data: Handle
    key: Key
    batch: int | None = None
    norm: str = "shared"
    loss: Term = TaskLoss()
    along: Params | None = None


Request = Fit | Evaluate | Gradient


# ---- the results
@dataclass(frozen=True, eq=False)
class Fitted:
    """What training gave: parameters (statistics included), and the mean task loss over all its steps."""

    params: Params
    loss: float
    steps: int
    samples: int
    extra: Params = field(default_factory=dict)
    peers: Mapping[str, Params] = field(default_factory=dict)
    watched: Params = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scored:
    """What evaluation gave: sums (they add) and the figures that they say."""

    tally: Tally
    metrics: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradient, the loss there, and the Hessian times ``along`` if that was asked for."""

    params: Params
    loss: float
    along: Params = field(default_factory=dict)


# ---- the one definition of a training step
def call(net: nn.Module, tensors: Params, x: Tensor, stages: Sequence[str] = ()) -> Output:
    """The net on these tensors (its buffers are written in place), with the outputs of ``stages``."""
    if not stages:
        return Output(functional_call(net, tensors, (x,)))
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda module, args, out: seen.__setitem__(name, out)

    hooks = [net.get_submodule(s).register_forward_hook(keep(s)) for s in stages]
    try:
        logits = functional_call(net, tensors, (x,))
    finally:
        for h in hooks:
            h.remove()
    return Output(logits, {s: seen[s] for s in stages})


def objective(
    fit: Fit,
    params: Params,
    extra: Params,
    peers: Mapping[str, Params],
    buffers: Params,
    given: Given,
    x: Tensor,
    y: Tensor,
    weights: Tensor | None = None,
    cover: Cover | None = None,
) -> tuple[Tensor, Tensor, Step, Params]:
    """The objective on a batch, the task loss alone, what was seen, and what of the tensors may move.

    ``buffers`` is written in place.  ``cover`` is this step's slice.  Both engines call this.
    """
    net = fit.model.net
    stages = fit.model.stages if any(t.features for t in (fit.loss, *fit.terms)) else ()
    used, moves = (params, Params()) if fit.view is None else fit.view(params, extra)
    running, sliced = buffers, Params()
    if cover is not None:
        trained = cover.only(lambda k: k in used)
        sliced = {k: s.dense() for k, s in trained.spans.items() if s.kind != "whole"}
        used = take(used, trained)
        running = {k: v.clone() for k, v in take(buffers, cover.only(lambda k: k in buffers)).items()}
    out = call(net, used | running, x, stages)
    if cover is not None:
        for k, v in running.items():
            buffers[k] = cover[k].put(buffers[k], v)

    def run(q: Params) -> Output:
        return call(net, q | {k: v.clone() for k, v in running.items() if k not in q}, x, stages)

    def peer(name: str) -> Output:
        p = fit.peers[name]
        own = {k: v.clone() if k not in p.model.trainable else v for k, v in p.params.items()}
        tensors = own | dict(peers.get(name, {})) | {k: params[m] for k, m in p.share.items()}
        if p.train:
            return call(p.model.net, tensors, x, p.model.stages if stages else ())
        with torch.no_grad():
            return call(p.model.net, tensors, x, p.model.stages if stages else ())

    s = Step(fit.task, params, extra, used, fit.anchor, given, x, y, out, run, peer, weights)
    main = fit.loss(s)
    total = main
    for t in fit.terms:
        total = total + t(s)
    return total, main, s, moves | sliced


def descend(
    optim: SGD,
    params: Params,
    grads: Params,
    speed: Params,
    moves: Params,
) -> None:
    """One update in place.  What may not move does not, by a single bit: no gradient, decay or momentum.

    The order is torch's: clip the gradient, add the decay, then the momentum.
    """
    with torch.no_grad():
        names = list(params)
        for k in names:
            if k in moves:
                grads[k] = torch.where(moves[k], grads[k], 0)
        if optim.clip is not None:
            size = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grads[k]) for k in names]))
            scale = (optim.clip / (size + 1e-6)).clamp(max=1.0)
            for k in names:
                grads[k] = grads[k] * scale
        for k in names:
            g = grads[k]
            if optim.weight_decay:
                g = g + optim.weight_decay * params[k]
            if optim.momentum:
                speed[k] = speed[k].mul(optim.momentum).add(g) if k in speed else g
                g = speed[k]
            if k in moves:
                params[k] -= optim.lr * torch.where(moves[k], g, 0)
            else:
                params[k] -= optim.lr * g


def restore(after: Params, before: Params, free: Cover) -> Params:
    """``before`` with only the free coordinates of ``after``: statistics frozen with their unit."""
    inside = free.only(lambda k: k in before)
    return put(before, inside, take(after, inside))
