"""The work of a client."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..cover import Axis, Cover, Params, put, take
from ..fit import SGD, Evaluate, Fit, Fitted, Scored, TaskLoss, Term
from ..model import Model
from ..norm import NORMS, plain, sent
from ..types import Client, Grant, Memory, Order, Part, Reply, Served, Serving, Work
from .terms import Scaler, SquaredLoss


@dataclass(frozen=True)
class Length:
    """How long a client trains: ``least`` to ``most`` epochs, drawn afresh each time.

    With ``seconds`` it is ``most`` epochs, or as many steps as its device manages in that time.
    """

    least: int
    most: int
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"epochs run from a least, 1 or more, to a most: not from {self.least} to {self.most}")

    def settings(self, client: Client) -> dict[str, Any]:
        """What a request for training is told."""
        if self.seconds is not None:
            return {"epochs": self.most, "flops": self.seconds * client.device.flops}
        return {"epochs": self.least + int(client.key.at("epochs").uniform() * (self.most - self.least + 1))}


@dataclass(frozen=True)
class Train(Part):
    """SGD from what was received; sends back what it became.

    ``keep``: what stays with the client for its next time: ``nothing``; the ``rest``, tensors that did
    not travel; or the ``whole`` model, into which what arrives is sewn and which it then uses.
    ``freeze``: of that model only what arrived may move.  ``own_rows``: it speaks only for the output rows of classes
    that it holds.  ``scaler``: hidden layers are divided by the width while training.
    ``finetune``: the model that the client uses has had so many further epochs on its own data.
    """

    optim: SGD = SGD()
    epochs: int | Length = 5
    batch: int = 32
    loss: Term = TaskLoss()
    terms: tuple[Term, ...] = ()
    keep: Literal["nothing", "rest", "whole"] = "nothing"
    freeze: bool = False
    own_rows: bool = False
    scaler: bool = False
    finetune: int = 0

    def __post_init__(self) -> None:
        if self.keep not in ("nothing", "rest", "whole"):
            raise ValueError(f"keep is nothing, rest or whole, not {self.keep!r}")

    def grant(self, cover: Cover, model: Model) -> Grant:
        """A reply speaks about what was sent; or about some of its output rows."""
        return Grant(cover, frozenset({"same", "whole", "block"} if self.own_rows else {"same"}))

    def fit(self, order: Order, client: Client, start: Params, **more: Any) -> Fit:
        """The request for a training from ``start``."""
        length = self.epochs.settings(client) if isinstance(self.epochs, Length) else {"epochs": self.epochs}
        anchor = {k: start[k] for k in client.model.trainable} if self.terms else {}
        watch = (SquaredLoss(),) if "rms_loss" in asked(order) else ()
        given = {"key": client.key.at("train"), "terms": self.terms, "anchor": anchor, "watch": watch}
        settings = given | length | more
        return Fit(
            client.model,
            client.task,
            start,
            client.train,
            optim=self.optim.at(order.round),
            batch=self.batch,
            norm=order.norm,
            loss=self.loss,
            **settings,
        )

    def __call__(self, order: Order, client: Client) -> Work:
        """Train, answer, remember."""
        whole, sub = received(order, client)
        held = client.model.whole if self.keep == "whole" else sub
        came = plain(order.cover.spans, client.device.width)
        out: Fitted = yield self.fit(
            order,
            client,
            take(whole, held),
            free=sub.only(came.__contains__) if self.freeze else None,
            view=Scaler.of(client.model, client.device.width) if self.scaler else None,
        )
        metrics = yield from measured(order, client, out)
        whole = put(whole, held, out.params)
        cover = own_rows(order, client) if self.own_rows else order.cover
        return answer(order, client, whole, metrics, cover), remember(model=self.kept(order, client, whole))

    def kept(self, order: Order, client: Client, whole: Params) -> Params:
        """What the client keeps of its model; statistics that do not travel are its own in any case."""
        if self.keep == "whole":
            return whole
        names = client.model.shapes if self.keep == "rest" else client.model.statistics
        sent = plain(order.cover.spans, client.device.width)
        return {k: whole[k] for k in sorted(names) if k not in sent and (self.keep == "rest" or personal(order))}

    def serve(self, order: Order, client: Client) -> Serving:
        """The client's own model if it keeps one, else what it would receive; adapted where that is asked for."""
        whole, sub = received(order, client)
        own = section(client.memory, "model") if self.keep == "whole" else {}
        params = own or (whole if self.keep == "whole" else take(whole, sub))
        if self.finetune or order.norm == "post-hoc":
            key = client.key.at("finetune")
            tuned: Fitted = yield replace(
                self.fit(order, client, params), key=key, epochs=self.finetune, flops=None, terms=()
            )
            params = tuned.params
        return Served(client.model, params, order.norm)


# ---- what every local work does
def section(memory: Memory, name: str) -> Params:
    """The tensors that a memory keeps under ``name/``."""
    return {k[len(name) + 1 :]: v for k, v in memory.tensors.items() if k.startswith(name + "/")}


def remember(facts: Mapping[str, Any] | None = None, **sections: Params) -> Memory:
    """A memory of named sections of tensors, and of facts."""
    return Memory({f"{name}/{k}": v for name, p in sections.items() for k, v in p.items()}, facts or {})


def received(order: Order, client: Client) -> tuple[Params, Cover]:
    """The client's whole model with what arrived sewn in, and the sub-model that the order is about.

    What did not travel is the client's own from earlier rounds, or else as the model was built.
    The sub-model is the units that the order speaks of, with all of their tensors.
    """
    cover = Cover(plain(order.cover.spans, client.device.width))
    return sewn(order, client), client.model.complete(cover)


def sewn(order: Order, client: Client) -> Params:
    """The client's whole model with what arrived sewn in, whatever the form of the order's cover."""
    width = client.device.width
    mine = client.model.params() | section(client.memory, "model")
    return put(mine, Cover(plain(order.cover.spans, width)), plain(order.params, width))


def answer(
    order: Order,
    client: Client,
    whole: Params,
    metrics: Mapping[str, float],
    cover: Cover | None = None,
    extra: Params | None = None,
) -> Reply:
    """The reply of a client whose model became ``whole``: what was sent, or the part of it in ``cover``."""
    cover = order.cover if cover is None else cover
    piece = take(sent(whole, order.cover, client.device.width), cover)
    weight = float(client.counts["train"])
    return Reply(order.client, order.round, piece, cover, weight, metrics, extra or {})


def spoken(order: Order, model: Model, sub: Cover) -> Cover:
    """What a reply says of a sub-model: its statistics too, where they travel."""
    return sub if NORMS[order.norm].travel else sub.only(model.trainable.__contains__)


def own_rows(order: Order, client: Client) -> Cover:
    """What was sent, less the output rows of classes that the client does not hold (none, if there are no classes)."""
    if not len(client.labels):
        return order.cover
    shapes, head = {k: s.shape for k, s in order.cover.spans.items()}, client.model.head + "."
    rows = {k: (Axis("class"), *(None,) * (len(s) - 1)) for k, s in shapes.items() if k.startswith(head)}
    return order.cover & Cover.units(shapes, rows, {"class": client.labels})


def personal(order: Order) -> bool:
    """Are the statistics of normalisation layers each client's own?"""
    return order.norm == "personal"


def measured(order: Order, client: Client, out: Fitted) -> Generator[Any, Any, dict[str, float]]:
    """The metrics of a reply: the training loss, and those that the server's parts ask for.

    ``steps`` is how many it made.
    ``val_loss`` and ``val_accuracy`` are those of what training gave, ``train_accuracy`` too.  ``rms_loss`` is
    the root of the mean squared loss of the samples trained on (the mean loss, where no training has watched it).
    ``initial_accuracy`` is that of the model as it was built, on the training data; 0 but in a client's first round.
    """
    metrics = {"loss": out.loss}
    wishes = asked(order)
    if "steps" in wishes:
        metrics["steps"] = float(out.steps)
    if "rms_loss" in wishes:
        seen = out.watched
        metrics["rms_loss"] = (
            math.sqrt(float(seen["loss_squared"] / seen["loss_count"].clamp(min=1)))
            if "loss_count" in seen
            else abs(out.loss)
        )
    for split, data in (("val", client.val), ("train", client.train)):
        wanted = [a for a in wishes if a in (f"{split}_loss", f"{split}_accuracy")]
        if wanted:
            scored: Scored = yield Evaluate(client.model, client.task, out.params, data, order.norm)
            metrics |= {a: score_of(scored, a.removeprefix(f"{split}_")) for a in wanted}
    if "initial_accuracy" in wishes:
        metrics["initial_accuracy"] = 0.0
        if order.version == 0:
            m = client.model
            first: Scored = yield Evaluate(m, client.task, m.params(), client.train, order.norm)
            metrics["initial_accuracy"] = score_of(first, "accuracy")
    return metrics


def asked(order: Order) -> list[str]:
    """The metrics that the server's parts ask for."""
    return str(order.scalars.get("asks", "")).split(",")


def score_of(seen: Scored, name: str) -> float:
    """A metric of a score; where the task has no accuracy, minus its loss stands for it: more is better."""
    return seen.metrics[name] if name in seen.metrics else -seen.metrics["loss"]
