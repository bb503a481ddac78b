"""Gradient tracking with compressed uploads: FedCOMGATE's client and server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..codec import Codec, Uniform, compress
from ..cover import Cover, take
from ..fit import Fitted
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..types import Brief, Client, Grant, Order, Part, Reply, Serving, State, Work
from .control import trained
from .local import Train, answer, measured, received, remember, section
from .merge import Filled, changes


@dataclass(frozen=True)
class Tracked(Part):
    r"""Each step is corrected by how the client's gradients have differed from everybody's.

    .. math:: \theta \leftarrow \theta - \eta (\nabla F_i(\theta) - \delta_i), \qquad
        \delta_i \leftarrow \delta_i + \tfrac{1}{\tau} (q_i - \bar q)

    A client learns what all sent in its last round with its next order, and corrects itself then.  For
    whole models: a coordinate that does not travel is not tracked.
    """

    train: Train = Train()
    codec: Codec = Uniform()

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """The name of the codec."""
        return Brief({"codec": self.codec.text})

    def __call__(self, order: Order, client: Client) -> Work:
        """Correct the correction, train, encode; what was sent is remembered as the server has seen it."""
        whole, sub = received(order, client)
        start, memory = take(whole, sub), client.memory
        drift, mine = section(memory, "drift"), section(memory, "told")
        everybody = {k[2:]: v for k, v in order.extra.items() if k.startswith("q/")}
        if mine and everybody:
            paid = float(memory.facts["paid"])  # type: ignore[arg-type]
            gap = {k: (v - mine[k]) / paid for k, v in everybody.items()}
            drift = {k: drift[k] + v if k in drift else v for k, v in gap.items()}
        fit = self.train.fit(order, client, start, correct={k: -v for k, v in drift.items()})
        out: Fitted = yield fit
        metrics = yield from measured(order, client, out)
        reply, _ = compress(answer(order, client, out.params, metrics), order, client.key.at("codec"))
        told = {k: reply.params[k].double() - order.params[k].double() for k in trained(order.cover, client.model)}
        kept = {"told": {k: v.to(start[k].dtype) for k, v in told.items()}, "drift": drift}
        facts = {"paid": max(out.steps, 1) * fit.optim.lr}
        return reply, remember(facts, model=self.train.kept(order, client, out.params), **kept)

    def serve(self, order: Order, client: Client) -> Serving:
        """As the plain training has it."""
        return (yield from self.train.serve(order, client))


@dataclass(frozen=True)
class Tracking(Part):
    """A step along the mean change; each client is told, with its next order, what that was in its last round."""

    lr: float = 1.0

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """The mean change of this round, and of every other that is still some client's last."""
        note = note or {"rounds": {}, "last": {}}
        last = {**note["last"], **{str(r.client): state.round for r in replies}}
        rounds = {t: q for t, q in note["rounds"].items() if int(t) in last.values()}
        if replies:
            num, den = changes(state, replies, lambda r: 1.0)
            mean = {k: (v / den[k].clamp(min=1)).to(state.params[k].dtype) for k, v in num.items()}
            rounds[str(state.round)] = {k: v for k, v in mean.items() if v.is_floating_point()}
        return {"rounds": rounds, "last": last}

    def brief(self, state: State, client: int, device: Device, model: Model, cover: Cover, key: Key) -> Brief:
        """What all sent in the client's last round."""
        note = state.notes.get("merge") or {"last": {}}
        if str(client) not in note["last"]:
            return Brief()
        mean = note["rounds"][str(note["last"][str(client)])]
        zero = {k: torch.zeros(model.shapes[k]) for k in trained(cover, model)}
        return Brief(extra={f"q/{k}": v for k, v in take(zero | mean, trained(cover, model)).items()})

    def __call__(self, state: State, replies: Sequence[Reply]) -> dict[str, torch.Tensor]:
        """The next global model."""
        return dict(Filled("uniform", self.lr)(state, replies))
