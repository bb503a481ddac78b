"""FjORD's parts: nested sub-models, and a width drawn in every local step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..cover import Cover, Params, count_units, put, take
from ..fit import Fitted, Slices
from ..fleet import Device
from ..key import Key
from ..model import Model
from ..norm import at_width, plain
from ..types import Client, Grant, Memory, Order, Part, Reply, Served, Serving, State, Work
from .distil import SelfDistil
from .local import Train, answer, measured, received, remember

FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


def upto(widths: tuple[float, ...], width: float) -> tuple[float, ...]:
    """Those of the widths that a device carries; its own, where it carries none."""
    return tuple(w for w in sorted(widths) if w <= width + 1e-9) or (width,)


@dataclass(frozen=True)
class Tier(Part):
    """The prefix of every group at the greatest of the widths that the device carries; statistics for each of these."""

    among: tuple[float, ...] = FIFTHS

    def widths(self, width: float) -> tuple[float, ...]:
        """All that it may draw."""
        return upto(self.among, width)

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The widest that it may draw."""
        return model.prefix(self.widths(device.width)[-1])


@dataclass(frozen=True)
class Nested(Part):
    """Trains what it was sent, a prefix of it at a time: each step draws one of the widths that the device carries.

    With ``distil`` the widest runs in each step too and teaches the drawn one.
    """

    train: Train = Train()
    among: tuple[float, ...] = FIFTHS
    distil: float | None = None

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def slices(self, model: Model, start: Params, width: float, key: Key, own: bool) -> Slices:
        """Each width as a slice of the piece ``start``; with ``own``, each with statistics of its own."""
        allowed = upto(self.among, width)
        covers = []
        for w in allowed:
            names = {k: at_width(k, w) if own and k in model.statistics else k for k in model.shapes}
            units = {g: torch.arange(count_units(w, n)) for g, n in model.groups.items()}
            cut = Cover.units({k: tuple(start[name].shape) for k, name in names.items()}, model.axes, units)
            covers.append(Cover({names[k]: s for k, s in cut.spans.items()}))
        ends = tuple(at_width("", w) for w in allowed) if own else ()
        return Slices(tuple(covers), key, ends, len(allowed) - 1 if self.distil is not None else None)

    def __call__(self, order: Order, client: Client) -> Work:
        """Train slice by slice; what is answered is the whole of what was sent."""
        own = order.norm == "per-width"
        whole, sub = received(order, client)
        start = dict(order.params) if own else take(whole, sub)
        slices = self.slices(client.model, start, client.device.width, client.key.at("width"), own)
        more = {} if self.distil is None else {"terms": (*self.train.terms, SelfDistil(self.distil))}
        main = 1.0 if self.distil is None else 1 - self.distil
        anchor = {k: start[k] for k in client.model.trainable}
        out: Fitted = yield self.train.fit(order, client, start, slices=slices, main=main, anchor=anchor, **more)
        widest = upto(self.among, client.device.width)[-1]
        metrics = yield from measured(order, client, replace(out, params=plain(out.params, widest)))
        if own:
            weight = float(client.counts["train"])
            return Reply(order.client, order.round, out.params, order.cover, weight, metrics), Memory()
        whole = put(whole, sub, out.params)
        return answer(order, client, whole, metrics), remember(model=self.train.kept(order, client, whole))

    def serve(self, order: Order, client: Client) -> Serving:
        """The widest that the device carries, as it would receive it."""
        if order.norm != "per-width":
            return (yield from self.train.serve(order, client))
        widest = upto(self.among, client.device.width)[-1]
        return Served(client.model, plain(order.params, widest), order.norm)
