"""The reference engine: one request at a time, on resident tensors.  Every other engine is measured against it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..cover import Cover, Params
from ..fit import (
    Evaluate,
    Fit,
    Fitted,
    Given,
    Gradient,
    Gradients,
    Request,
    Scored,
    Slices,
    call,
    descend,
    objective,
    restore,
)
from ..meter import Usage, flops
from ..norm import NORMS, at_width
from ..task import Tally, add
from ..types import Served
from . import Data, Done, Failed, Job, Setup

SCORE_BATCH = 512


@dataclass(eq=False)
class Serial:
    """Answers requests one after another.

    ``strict`` raises what a client's work raises instead of counting it as that client's failure.
    """

    data: Data
    setup: Setup
    strict: bool = False
    _resident: dict[object, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _flops: dict[object, float] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job]) -> list[Done | Failed]:
        """What came of each job."""
        torch.set_num_threads(self.setup.threads)
        return [self._one(job) for job in jobs]

    def _one(self, job: Job) -> Done | Failed:
        usage: list[Usage] = []
        try:
            if not job.score:
                return Done(self._drive(job.local(job.order, job.client), usage), sum(usage, Usage()))
            served: Served = self._drive(job.local.serve(job.order, job.client), usage)
            scores = {}
            for split in job.score:
                handle = getattr(job.client, split)
                scores[split] = self._evaluate(
                    Evaluate(served.model, job.client.task, served.params, handle, served.norm), usage
                )
            return Done(scores, sum(usage, Usage()))
        except Exception as error:
            if self.strict:
                raise
            return Failed(f"{type(error).__name__}: {error}", error)

    def _drive(self, work: Generator[Any, Any, Any], usage: list[Usage]) -> Any:
        try:
            request = next(work)
            while True:
                request = work.send(self.answer(request, usage))
        except StopIteration as end:
            return end.value

    def answer(self, request: Request, usage: list[Usage] | None = None) -> Fitted | Scored | Gradients:
        """The result of one request; what it cost is appended to ``usage``."""
        usage = [] if usage is None else usage
        if isinstance(request, Fit):
            return self._fit(request, usage)
        if isinstance(request, Evaluate):
            return self._evaluate(request, usage)
        return self._gradient(request, usage)

    # ---- data and layout
    def _load(self, handle: object) -> tuple[Tensor, Tensor]:
        if handle not in self._resident:
            x, y = self.data[handle]  # type: ignore[index]
            self._resident[handle] = (self._laid(x), y)
        return self._resident[handle]

    def _laid(self, t: Tensor) -> Tensor:
        if self.setup.layout == "channels_last" and t.dim() == 4:
            return t.contiguous(memory_format=torch.channels_last)
        return t

    # ---- training
    def _fit(self, f: Fit, usage: list[Usage]) -> Fitted:
        x, y = self._load(f.data)
        run = _Run(f, {k: self._laid(v) for k, v in f.start.items()}, y.unique())
        epochs, limit = f.length(len(x))
        spent, seen, steps, loss = 0.0, 0, 0, torch.zeros((), dtype=torch.float64)
        with training(f.model.net, f.key):
            for epoch in range(epochs):
                for b in f.order(epoch, len(x)).split(f.batch):
                    if steps >= limit or (f.flops is not None and steps and spent >= f.flops):
                        break
                    pick = f.slices.at(steps) if f.slices else None
                    xb, yb = x[b], y[b]
                    spent += len(b) * self._step_flops(run, xb, yb, pick)
                    loss += run.step(xb, yb, pick).double() * len(b)
                    seen, steps = seen + len(b), steps + 1
            if f.norm == "post-hoc":
                run.buffers = calibrated(f, run.trained | run.buffers, x)
        usage.append(Usage(spent, seen, steps, 1))
        return run.result(float(loss) / max(seen, 1), steps, seen)

    def _step_flops(self, run: _Run, x: Tensor, y: Tensor, pick: int | None) -> float:
        """FLOPs of one sample of such a step, counted once for each executed form of it."""
        form = (run.form, tuple(x.shape[1:]), pick)
        if form not in self._flops:
            probe = _Run(run.fit, run.trained | run.buffers, run.labels)
            n = min(len(x), 2)
            self._flops[form] = flops(lambda: probe.gradients(x[:n], y[:n], pick)) / n
        return self._flops[form]

    # ---- scoring
    def _evaluate(self, e: Evaluate, usage: list[Usage]) -> Scored:
        x, y = self._load(e.data)
        params = {k: self._laid(v) for k, v in e.params.items()}
        tally: Tally = {}
        spent = 0.0
        with torch.no_grad(), scoring(e.model.net, NORMS[e.norm].running):
            for xb, yb in zip(x.split(SCORE_BATCH), y.split(SCORE_BATCH), strict=True):
                form = (e.model, _form(params), tuple(xb.shape[1:]), "score")
                if form not in self._flops:
                    own = _own(params, e.model.statistics)
                    self._flops[form] = flops(partial(call, e.model.net, own, xb[:2])) / len(xb[:2])
                spent += len(xb) * self._flops[form]
                out = call(e.model.net, _own(params, e.model.statistics), xb).logits
                tally = add(tally, e.task.tally(out, yb))
        usage.append(Usage(spent, 0, 0, 1))
        return Scored(tally, e.task.metrics(tally) if tally else {})

    # ---- gradients
    def _gradient(self, g: Gradient, usage: list[Usage]) -> Gradients:
        x, y = self._load(g.data)
        if g.batch is not None:
            b = g.key.permutation(len(x))[: g.batch]
            x, y = x[b], y[b]
        f = Fit(g.model, g.task, g.params, g.data, g.key, norm=g.norm, loss=g.loss)
        run = _Run(f, {k: self._laid(v) for k, v in g.params.items()}, y.unique())
        with training(g.model.net, g.key):
            form = (run.form, tuple(x.shape[1:]), g.along is not None)
            if form not in self._flops:
                n = min(len(x), 2)
                self._flops[form] = flops(lambda: run.curvature(x[:n], y[:n], g.along)) / n
            grads, along, loss = run.curvature(x, y, g.along)
        usage.append(Usage(self._flops[form] * len(x), len(x), 1, 1))
        return Gradients(grads, float(loss), along)


def _own(params: Params, statistics: frozenset[str]) -> Params:
    return {k: v.clone() if k in statistics else v for k, v in params.items()}


def _form(params: Params) -> tuple[object, ...]:
    return tuple((k, tuple(v.shape)) for k, v in params.items())


class _Run:
    """One request for training while it is answered: tensors that are written in place."""

    def __init__(self, f: Fit, start: Params, labels: Tensor) -> None:
        self.fit, self.labels = f, labels
        names = [k for k in sorted(start) if k in f.model.trainable]
        self.trained: Params = {k: start[k].detach().clone() for k in names}
        self.buffers: Params = {k: v.detach().clone() for k, v in sorted(start.items()) if k not in self.trained}
        self.extra: Params = {k: v.detach().clone() for k, v in f.extra.items()}
        self.peers: dict[str, Params] = {
            name: {k: v.detach().clone() for k, v in p.params.items() if k in p.model.trainable and k not in p.share}
            for name, p in f.peers.items()
            if p.train
        }
        self.given: Given = {}
        for t in (f.loss, *f.terms):
            self.given |= t.given(f, labels)
        self.moves = f.moves
        self.speed: Params = {}
        self.watched: list[Params] = [w.start(f) for w in f.watch]

    @property
    def form(self) -> tuple[object, ...]:
        """What decides the executed shapes."""
        f = self.fit
        return f.model, _form(self.trained), f.loss, f.terms, type(f.view), tuple(f.peers)

    def _leaves(self) -> Params:
        """All that is trained, under one dict: the net's, ``+`` extras, ``peer/`` other nets."""
        flat = self.trained | {"+" + k: v for k, v in self.extra.items()}
        for name, p in self.peers.items():
            flat |= {f"{name}/{k}": v for k, v in p.items()}
        return {k: v.detach().requires_grad_() for k, v in flat.items()}

    def _objective(self, leaves: Params, x: Tensor, y: Tensor, pick: int | None) -> Any:
        f = self.fit
        params = {k: leaves[k] for k in self.trained}
        extra = {k: leaves["+" + k] for k in self.extra}
        peers = {name: {k: leaves[f"{name}/{k}"] for k in p} for name, p in self.peers.items()}
        buffers = self.buffers if NORMS[f.norm].update else {k: v.clone() for k, v in self.buffers.items()}
        if f.slices is None or pick is None:
            return objective(f, params, extra, peers, buffers, self.given, x, y)
        cover, names = sliced(f.slices, pick, self.trained)
        plain = {names.get(k, k): v for k, v in buffers.items()}
        out = objective(f, params, extra, peers, plain, self.given, x, y, cover=cover)
        buffers.update({k: plain[names.get(k, k)] for k in buffers})
        return out

    def gradients(self, x: Tensor, y: Tensor, pick: int | None) -> tuple[Params, Tensor, Any, Params]:
        """The gradient of the objective on a batch, the task loss, what was seen, what may move."""
        leaves = self._leaves()
        total, main, seen, moves = self._objective(leaves, x, y, pick)
        grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True)), main.detach(), seen, moves

    def curvature(self, x: Tensor, y: Tensor, along: Params | None) -> tuple[Params, Params, Tensor]:
        """The gradient, and the Hessian times ``along``."""
        leaves = self._leaves()
        total, main, _, _ = self._objective(leaves, x, y, None)
        values = list(leaves.values())
        grads = torch.autograd.grad(total, values, create_graph=along is not None, materialize_grads=True)
        twice: Params = {}
        if along is not None:
            dot = torch.stack([(g * along[k]).sum() for k, g in zip(leaves, grads, strict=True)]).sum()
            twice = dict(zip(leaves, torch.autograd.grad(dot, values, materialize_grads=True), strict=True))
        return {k: g.detach() for k, g in zip(leaves, grads, strict=True)}, twice, main.detach()

    def step(self, x: Tensor, y: Tensor, pick: int | None) -> Tensor:
        """One update in place; the task loss before it."""
        f = self.fit
        grads, main, seen, moves = self.gradients(x, y, pick)
        for i, w in enumerate(f.watch):
            self.watched[i] = w.add(self.watched[i], seen, grads)
        for k, c in f.correct.items():
            grads[k] = grads[k] + c
        moves = self.moves | {k: m & self.moves[k] if k in self.moves else m for k, m in moves.items()}
        flat = self.trained | {"+" + k: v for k, v in self.extra.items()}
        for name, p in self.peers.items():
            flat |= {f"{name}/{k}": v for k, v in p.items()}
        descend(f.optim, flat, grads, self.speed, moves)
        return main

    def result(self, loss: float, steps: int, samples: int) -> Fitted:
        """What the training gave."""
        f = self.fit
        after = self.trained | self.buffers
        if f.norm == "frozen" and f.free is not None:
            after |= restore(self.buffers, {k: f.start[k] for k in self.buffers}, f.free)
        params = {k: after[k].contiguous() for k in f.start}
        peers = {name: dict(f.peers[name].params) | p for name, p in self.peers.items()}
        watched = {k: v for w in self.watched for k, v in w.items()}
        return Fitted(params, loss, steps, samples, self.extra, peers, watched)


def sliced(slices: Slices, pick: int, trained: Params) -> tuple[Cover, dict[str, str]]:
    """This step's cover by the net's own names, and which set of statistics stands for which of them."""
    cover, suffix = slices.covers[pick], slices.names[pick] if slices.names else ""
    names = {k: k.removesuffix(suffix) for k in cover if suffix and k.endswith(suffix)}
    return Cover({names.get(k, k): s for k, s in cover.spans.items()}), names


# ---- modes of a net
@contextlib.contextmanager
def training(net: nn.Module, key: Any) -> Iterator[None]:
    """Training mode; dropout, where a net has it, draws from the request's own key."""
    net.train()
    if not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in net.modules()):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.at("dropout").number())
        yield


@contextlib.contextmanager
def scoring(net: nn.Module, running: bool) -> Iterator[None]:
    """Evaluation mode; with ``running`` false, normalisation layers use the statistics of the batch."""
    net.eval()
    if not running:
        for m in normalising(net):
            m.train()
    yield
    net.eval()


def normalising(net: nn.Module) -> list[Any]:
    """The layers that have running statistics, of whatever class."""
    return [m for m in net.modules() if isinstance(getattr(m, "running_mean", None), Tensor)]


def calibrated(f: Fit, params: Params, x: Tensor) -> Params:
    """The statistics of these weights over the data: the average over the batches, in the order of the rows."""
    layers = normalising(f.model.net)
    buffers = {k: v.clone() for k, v in params.items() if k not in f.model.trainable}
    weights = {k: v for k, v in params.items() if k in f.model.trainable}
    before = [m.momentum for m in layers]
    try:
        with torch.no_grad(), scoring(f.model.net, running=False):
            for i, xb in enumerate(x.split(SCORE_BATCH)):
                for m in layers:
                    m.momentum = 1 / (i + 1)
                call(f.model.net, weights | buffers, xb)
    finally:
        for m, momentum in zip(layers, before, strict=True):
            m.momentum = momentum
    return buffers


__all__ = ["Serial", "at_width", "calibrated", "scoring", "training"]
