"""Training as a value: what local work asks for, and what it is told.

A local is a generator that yields requests and receives results.  Whoever runs it decides how: one
after another, in a worker process, or many clients in one batched program.  So a request is plain
data: frozen dataclasses and tensors, no closures.  What looks at a step is :mod:`fedquilt.term`; the
one definition of a training step is :mod:`fedquilt.step`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from .cover import Cover, Params
from .key import Key
from .model import Model
from .norm import norm as norm_policy
from .task import Tally, Task
from .term import Given, Output, Step, TaskLoss, Term, View, Watch, call
from .types import Handle

__all__ = [
    "SGD",
    "Evaluate",
    "Fit",
    "Fitted",
    "Given",
    "Gradient",
    "Gradients",
    "Output",
    "Peer",
    "Request",
    "Scored",
    "Slices",
    "Step",
    "TaskLoss",
    "Term",
    "View",
    "Watch",
    "call",
]


# ---- what a request is made of
@dataclass(frozen=True)
class Slices:
    """Another sub-model at each step: one of ``covers`` is drawn, only its coordinates run and move.

    ``names[i]`` is the suffix of the statistics that cover ``i`` uses (``@0.4``), empty for the plain
    ones.  With ``beside``, that cover runs in every step too (``step.beside``) and may move as well.
    """

    covers: tuple[Cover, ...]
    key: Key
    names: tuple[str, ...] = ()
    beside: int | None = None

    def at(self, step: int) -> int:
        """Which cover the step uses."""
        return int(torch.randint(len(self.covers), (), generator=self.key.at("slice", step).torch()))

    @cached_property
    def own(self) -> tuple[Mapping[str, str], ...]:
        """For each cover: the net's own name of each tensor, and the name that the cover has for it."""
        ends = self.names or ("",) * len(self.covers)
        return tuple({k.removesuffix(end): k for k in c} for c, end in zip(self.covers, ends, strict=True))

    @cached_property
    def inside(self) -> tuple[Params, ...]:
        """For each cover: where the tensors that it cuts may move."""
        return tuple({k: s.dense() for k, s in c.spans.items() if s.kind != "whole"} for c in self.covers)


@dataclass(frozen=True, eq=False)
class Peer:
    """Another net of a request: a teacher (as it is, in evaluation mode), or one trained along with the main net.

    ``share`` maps names of its trainable tensors to names of the main net's: those are one and the same.
    """

    model: Model
    params: Params
    train: bool = False
    share: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def own(self) -> frozenset[str]:
        """The trainable tensors that it does not share."""
        return self.model.trainable - self.share.keys()


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
        for name in ("clip", "decay"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"{name} is a number above 0, not {getattr(self, name)}")

    def at(self, round: int) -> SGD:
        """The same, with the learning rate of this round."""
        return SGD(self.lr * self.decay**round, self.momentum, self.weight_decay, self.clip)


# ---- the requests
@dataclass(frozen=True, eq=False)
class Fit:
    """Train ``model`` from ``start``: everything that this needs, as a value.

    The objective is ``main`` times the ``loss``, plus the ``terms``.  ``free`` says which
    coordinates may move (None: all); ``slices`` and ``view`` change that at each step; ``correct``
    is added to the gradient; ``epochs`` or ``steps`` say how long (with ``steps`` the epochs go on
    as long as it takes), and ``flops`` is a budget that may end it earlier, after one step at
    least.  Under ``post-hoc`` a request ends with the statistics of the final weights, so one of no
    epochs is a calibration.
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
    main: float = 1.0
    terms: tuple[Term, ...] = ()
    anchor: Params = field(default_factory=dict)
    free: Cover | None = None
    slices: Slices | None = None
    view: View | None = None
    extra: Params = field(default_factory=dict)
    correct: Params = field(default_factory=dict)
    peers: Mapping[str, Peer] = field(default_factory=dict)
    watch: tuple[Watch, ...] = ()

    def __post_init__(self) -> None:
        norm_policy(self.norm)
        if self.batch < 1 or self.epochs < 0 or (self.steps or 0) < 0:
            raise ValueError(
                f"no training is of {self.epochs} epochs or {self.steps} steps, in batches of {self.batch}"
            )
        if self.slices is None:
            complete(self.model, self.start)
        else:
            for own, cover in zip(self.slices.own, self.slices.covers, strict=True):
                complete(self.model, own)
                if lost := cover.spans.keys() - self.start.keys():
                    raise ValueError(f"a slice names {sorted(lost)}: not in the start")
        for peer in self.peers.values():
            complete(peer.model, {*peer.params, *peer.share})
            if not (peer.share.keys() <= peer.model.trainable and {*peer.share.values()} <= self.model.trainable):
                raise ValueError(f"only trainable tensors are shared with a peer, not all of {dict(peer.share)}")

    def order(self, epoch: int, n: int) -> Tensor:
        """The order of the samples in an epoch; the same in every engine."""
        return self.key.at("epoch", epoch).permutation(n)

    def length(self, n: int) -> tuple[int, int]:
        """Epochs to go through, and steps in all, for ``n`` samples."""
        a_pass = -(-n // self.batch) if n else 0
        if self.steps is None:
            return self.epochs, self.epochs * a_pass
        return (-(-self.steps // a_pass) if a_pass else 0), (self.steps if a_pass else 0)

    def batches(self, n: int) -> Iterator[Tensor]:
        """The rows of each step, for ``n`` samples."""
        epochs, steps = self.length(n)
        return islice((b for e in range(epochs) for b in self.order(e, n).split(self.batch)), steps)

    @cached_property
    def moves(self) -> Params:
        """For each trainable tensor that is not wholly free, where it may move."""
        return self._inside(self.model.trainable)

    @cached_property
    def thawed(self) -> Params:
        """The same of statistics, under ``frozen``: they move with their units."""
        return self._inside(self.start.keys() - self.model.trainable) if self.norm == "frozen" else {}

    def _inside(self, names: Collection[str]) -> Params:
        free = self.free
        if free is None:
            return {}
        return {
            k: free[k].dense() if k in free else torch.zeros(self.start[k].shape, dtype=torch.bool)
            for k in sorted(names)
            if k not in free or free[k].kind != "whole"
        }

    @cached_property
    def still(self) -> frozenset[str]:
        """Tensors that need no gradient: they may not move, and nobody watches."""
        if self.free is None or self.watch:
            return frozenset()
        return frozenset(k for k in self.model.trainable if k not in self.free)


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Score ``params`` on data: the task's tally."""

    model: Model
    task: Task
    params: Params
    data: Handle
    norm: str = "shared"

    def __post_init__(self) -> None:
        norm_policy(self.norm)
        complete(self.model, self.params)


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

    def __post_init__(self) -> None:
        norm_policy(self.norm)
        complete(self.model, self.params)

    @cached_property
    def fit(self) -> Fit:
        """The training whose first gradient it is."""
        return Fit(self.model, self.task, self.params, self.data, self.key, norm=self.norm, loss=self.loss)


Request = Fit | Evaluate | Gradient


def complete(model: Model, names: Collection[str]) -> None:
    """Refuse what does not name every tensor of a net (but those without entries): it would run on those as built."""
    missing = [k for k, shape in model.shapes.items() if k not in names and 0 not in shape]
    if missing:
        raise ValueError(f"the model {model.name} has {len(missing)} tensors without a value: {', '.join(missing)}")


# ---- the results
@dataclass(frozen=True, eq=False)
class Fitted:
    """What training gave: parameters (statistics included), and the mean of the loss over all its steps."""

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
    """The gradient, the loss there, the Hessian times ``along`` if asked for, and the statistics as they are left."""

    params: Params
    loss: float
    along: Params = field(default_factory=dict)
    statistics: Params = field(default_factory=dict)
