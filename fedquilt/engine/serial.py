"""The reference engine: one request at a time, on resident tensors.  Every other engine is measured against it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..cover import Params
from ..fit import Evaluate, Fit, Fitted, Gradient, Gradients, Request, Scored, call
from ..meter import Usage, flops
from ..model import Model
from ..norm import NORMS
from ..step import Training, begin, curvature, gradient, mode, normalising, training
from ..task import Tally, add
from ..types import Served
from . import Data, Done, Failed, Job, Setup

SCORE_BATCH = 512
Work = Callable[[Tensor, Tensor], object]
FORMS = 4096  # executed forms whose FLOPs are remembered


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
        if isinstance(request, Gradient):
            return self._gradient(request, usage)
        raise TypeError(f"local work asks for a Fit, an Evaluate or a Gradient, not for {request!r}")

    # ---- data and layout
    def _load(self, handle: Any) -> tuple[Tensor, Tensor]:
        x, y = self.data[handle]
        if self.setup.layout != "channels_last" or x.dim() != 4:
            return x, y
        source, laid = self._resident.get(handle, (None, x))
        if source is not x:
            laid = self._laid(x)
            self._resident[handle] = x, laid
        return laid, y

    def _laid(self, t: Tensor) -> Tensor:
        if self.setup.layout == "channels_last" and t.dim() == 4:
            return t.contiguous(memory_format=torch.channels_last)
        return t

    # ---- training
    def _fit(self, f: Fit, usage: list[Usage]) -> Fitted:
        x, y = self._load(f.data)
        run = Training.of(f, y.unique(), self._laid)
        executed = form(f)
        spent, seen, steps, loss = 0.0, 0, 0, torch.zeros((), dtype=torch.float64)
        pick: int | None = None

        def probe(a: Tensor, b: Tensor) -> object:
            return gradient(f, run.moving, run.held, a, b, pick)

        with training(f.model.net, f.key):
            for rows in f.batches(len(x)):
                if f.flops is not None and steps and spent >= f.flops:
                    break
                pick = f.slices.at(steps) if f.slices else None
                xb, yb = x[rows], y[rows]
                spent += self._counted((*executed, pick), xb, yb, probe)
                loss += run.step(xb, yb, pick).double() * len(rows)
                seen, steps = seen + len(rows), steps + 1
        if f.norm == "post-hoc":
            spent += self._calibrate(run, x)
        usage.append(Usage(spent, seen, steps, 1))
        return run.result(float(loss) / max(seen, 1), steps, seen)

    def _counted(
        self, form: tuple[object, ...], x: Tensor, y: Tensor, work: Callable[[Tensor, Tensor], object]
    ) -> float:
        """FLOPs of ``work`` on a batch: those of one sample, counted once for each executed form, times the samples."""
        if not len(x):
            return 0.0
        form = (*form, tuple(x.shape[1:]))
        if form not in self._flops:
            if len(self._flops) >= FORMS:
                self._flops.clear()
            n = min(len(x), 2)
            self._flops[form] = flops(lambda: work(x[:n], y[:n])) / n
        return self._flops[form] * len(x)

    def _calibrate(self, run: Training, x: Tensor) -> float:
        """Gives a training the statistics of its weights over the data; the FLOPs of that."""
        model, tensors = run.fit.model, run.tensors()
        run.held = run.held._replace(buffers=calibrated(model, tensors, x))
        return self._score_flops(model, tensors, x)

    # ---- scoring
    def _evaluate(self, e: Evaluate, usage: list[Usage]) -> Scored:
        x, y = self._load(e.data)
        params = {k: self._laid(v) for k, v in e.params.items()}
        tally: Tally = {}
        spent = self._score_flops(e.model, params, x)
        with torch.no_grad(), mode(e.model.net, train=False, batch=not NORMS[e.norm].running):
            for xb, yb in zip(x.split(SCORE_BATCH), y.split(SCORE_BATCH), strict=True):
                if len(xb):
                    tally = add(tally, e.task.tally(call(e.model.net, _own(e.model, params), xb).logits, yb))
        usage.append(Usage(spent, 0, 0, 1))
        return Scored(tally, e.task.metrics(tally) if tally else {})

    def _score_flops(self, model: Model, params: Params, x: Tensor) -> float:
        """FLOPs of the net's outputs on all of ``x``."""

        def work(x: Tensor, y: Tensor) -> object:
            with torch.no_grad(), mode(model.net, train=False):
                return call(model.net, _own(model, params), x)

        return self._counted((known(model), shapes(params), "score"), x, x, work)

    # ---- gradients
    def _gradient(self, g: Gradient, usage: list[Usage]) -> Gradients:
        x, y = self._load(g.data)
        if g.batch is not None:
            rows = g.key.permutation(len(x))[: g.batch]
            x, y = x[rows], y[rows]
        moving, held = begin(g.fit, y.unique(), self._laid)
        with training(g.model.net, g.key):
            executed = (*form(g.fit), g.along is not None)
            spent = self._counted(executed, x, y, lambda a, b: curvature(g, moving, held, a, b))
            grads, along, seen = curvature(g, moving, held, x, y)
        usage.append(Usage(spent, len(x), 1, 1))
        left = seen.buffers if NORMS[g.norm].update else held.buffers
        return Gradients(grads, float(seen.main), along, left)


# ---- what decides the executed shapes
def known(model: Model) -> object:
    """A model by what builds it, so that one built again is known; or itself."""
    return (repr(model.spec), model.trainable) if model.spec else model


def shapes(params: Params) -> tuple[object, ...]:
    """The names and shapes of tensors."""
    return tuple((k, tuple(v.shape)) for k, v in params.items())


def form(f: Fit) -> tuple[object, ...]:
    """What decides the executed shapes of a training step, but for the slice and the batch."""
    peers = tuple((k, known(p.model), shapes(p.params), p.train, tuple(p.share.items())) for k, p in f.peers.items())
    slices = f.slices and (f.slices.covers, f.slices.beside)
    return known(f.model), shapes(f.start), f.loss, f.terms, f.view, f.watch, f.still, shapes(f.extra), slices, peers


def _own(model: Model, params: Params) -> Params:
    return {k: v if k in model.trainable else v.clone() for k, v in params.items()}


def calibrated(model: Model, params: Params, x: Tensor) -> Params:
    """The statistics of these weights over the data: the average over the batches, in the order of the rows."""
    layers = normalising(model.net)
    buffers = {k: v.clone() for k, v in params.items() if k not in model.trainable}
    weights = {k: v for k, v in params.items() if k in model.trainable}
    before = [m.momentum for m in layers]
    try:
        with torch.no_grad(), mode(model.net, train=False, batch=True):
            for i, xb in enumerate(x.split(SCORE_BATCH)):
                for m in layers:
                    m.momentum = 1 / (i + 1)
                call(model.net, weights | buffers, xb)
    finally:
        for m, momentum in zip(layers, before, strict=True):
            m.momentum = momentum
    return buffers
