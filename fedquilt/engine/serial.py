"""The reference engine: one request at a time, on resident tensors.  Every other engine is measured against it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..cover import Params
from ..fit import Evaluate, Fit, Fitted, Gradient, Gradients, Request, Scored, call
from ..key import Key
from ..meter import Cost, Usage, Work, cost, density, nbytes, ran_on, resting, tensors
from ..model import Model
from ..norm import NORMS
from ..step import Layout, Training, begin, curvature, gradient, mode, normalising, training
from ..task import Tally, add
from ..types import Served
from . import Data, Done, Failed, Job, Setup
from .trim import blocks, trimmed

SCORE_BATCH = 64  # what a processor's cache holds; how the samples of a score are split changes nothing, but for
WIDE_BATCH = 512  # statistics that are taken over each batch: of these there should be many samples
FEW = 8  # samples of which a form's cost is told
FORMS = 4096  # executed forms whose costs are remembered


@dataclass(eq=False)
class Serial:
    """Answers requests one after another.

    ``strict`` raises what a client's work raises instead of counting it as that client's failure.
    """

    data: Data
    setup: Setup
    strict: bool = False
    _costs: dict[object, Cost] = field(default_factory=dict)

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
    def _laid(self, t: Tensor) -> Tensor:
        if self.setup.layout != "channels_last" or t.dim() != 4:
            return t
        if t.shape[1] > 1:
            return t.contiguous(memory_format=torch.channels_last)
        # of one channel it is both: torch goes by the strides, and would run all up to the next convolution as if not
        n, _, h, w = t.shape
        return t.contiguous().as_strided((n, 1, h, w), (h * w, 1, w, 1))

    def _ready(self, x: Tensor, key: Key | None = None) -> Tensor:
        """A batch as a net takes it: normalised as the data say, and with a key augmented."""
        prepare = getattr(self.data, "prepare", None)
        return self._laid(x if prepare is None else prepare(x, key))

    # ---- training
    def _fit(self, f: Fit, usage: list[Usage]) -> Fitted:
        x, y = self.data[f.data]
        if x.dtype in (torch.float32, torch.float64):
            x = self._laid(x)  # once, not batch by batch; not kept: that would be a second copy of everybody's data
        run = Training.of(f, y.unique(), self._laid)
        thin = blocks(f)
        executed = (*form(f), tuple((k, b.size) for k, b in thin.items()))
        spent, loss = Usage(requests=1), torch.zeros((), dtype=torch.float64)
        beside = resting(f, run.moving, run.held, run.speed)
        pick: int | None = None

        def probe(a: Tensor, b: Tensor) -> object:
            return gradient(f, run.moving, run.held, a, b, pick)

        with training(f.model.net, f.key), trimmed(thin, run.moving):
            for rows in f.batches(len(x)):
                if f.flops is not None and spent.steps and spent.flops >= f.flops:
                    break
                pick = f.slices.at(spent.steps) if f.slices else None
                xb, yb = x.index_select(0, rows), y.index_select(0, rows)
                xb = self._ready(xb, f.key.at("augment", spent.steps))
                spent += self._cost((*executed, pick), xb, yb, probe, run.moving, run.held).at(len(rows), beside)
                loss += run.step(xb, yb, pick).double() * len(rows)
        if f.norm == "post-hoc":
            spent += self._calibrate(run, x)
        usage.append(spent.dense(density(ran_on(f, run.moving, run.held))))
        return run.result(float(loss) / max(spent.samples, 1), spent.steps, spent.samples)

    def _cost(self, form: tuple[object, ...], x: Tensor, y: Tensor, work: Work, *known: Any) -> Cost:
        """What ``work`` on such samples costs, beside ``known`` tensors; counted once for each executed form."""
        form = (*form, tuple(x.shape[1:]))
        if form not in self._costs:
            if len(self._costs) >= FORMS:
                self._costs.clear()
            self._costs[form] = cost(work, x, y, tensors(known))
        return self._costs[form]

    def _calibrate(self, run: Training, x: Tensor) -> Usage:
        """Gives a training the statistics of its weights over the data; what that costs."""
        model, tensors = run.fit.model, run.tensors()
        run.held = run.held._replace(buffers=calibrated(model, tensors, x, self._ready))
        return self._score_cost(model, tensors, x, batch=True)

    # ---- scoring
    def _evaluate(self, e: Evaluate, usage: list[Usage]) -> Scored:
        x, y = self.data[e.data]
        params = {k: self._laid(v) for k, v in e.params.items()}
        tally: Tally = {}
        batch = not NORMS[e.norm].running
        spent = self._score_cost(e.model, params, x, batch)
        with torch.no_grad(), mode(e.model.net, train=False, batch=batch):
            size = WIDE_BATCH if batch else SCORE_BATCH
            for xb, yb in zip(x.split(size), y.split(size), strict=True):
                if len(xb):
                    tally = add(
                        tally, e.task.tally(call(e.model.net, _own(e.model, params), self._ready(xb)).logits, yb)
                    )
        usage.append((spent + Usage(requests=1)).dense(density(params)))
        return Scored(tally, e.task.metrics(tally) if tally else {})

    def _score_cost(self, model: Model, params: Params, x: Tensor, batch: bool) -> Usage:
        """What the net's outputs on all of ``x`` cost."""

        def work(x: Tensor, y: Tensor) -> object:
            with torch.no_grad(), mode(model.net, train=False, batch=batch):
                return call(model.net, _own(model, params), x)

        if not len(x):
            return Usage()
        form = known(model), shapes(params), batch, "score"
        return self._cost(form, some := self._ready(x[:FEW]), some, work).at(len(x), nbytes(params), train=False)

    # ---- gradients
    def _gradient(self, g: Gradient, usage: list[Usage]) -> Gradients:
        x, y = self.data[g.data]
        if g.batch is not None:
            rows = g.key.permutation(len(x))[: g.batch]
            x, y = x[rows], y[rows]
        x = self._ready(x)
        moving, held = begin(g.fit, y.unique(), self._laid)
        with training(g.model.net, g.key):
            executed = (*form(g.fit), g.along is not None)
            spent = Usage(requests=1)
            if len(x):
                once = self._cost(executed, x, y, lambda a, b: curvature(g, moving, held, a, b), moving, held)
                spent += once.at(len(x), resting(g.fit, moving, held))
            grads, along, seen = curvature(g, moving, held, x, y)
        usage.append(spent.dense(density(moving)))
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


def calibrated(model: Model, params: Params, x: Tensor, ready: Layout = lambda t: t) -> Params:
    """The statistics of these weights over the data: the average over the batches, in the order of the rows."""
    layers = normalising(model.net)
    buffers = {k: v.clone() for k, v in params.items() if k not in model.trainable}
    weights = {k: v for k, v in params.items() if k in model.trainable}
    before = [m.momentum for m in layers]
    try:
        with torch.no_grad(), mode(model.net, train=False, batch=True):
            for i, xb in enumerate(x.split(WIDE_BATCH)):
                for m in layers:
                    m.momentum = 1 / (i + 1)
                call(model.net, weights | buffers, ready(xb))
    finally:
        for m, momentum in zip(layers, before, strict=True):
            m.momentum = momentum
    return buffers
