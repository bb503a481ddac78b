"""Masks of single weights: which are left, which go, which come back; what is masked out is zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..cover import Cover, Params, put
from ..fit import Evaluate, Fitted, Gradient, Scored
from ..fleet import Device, Fleet
from ..key import Key
from ..model import Model
from ..norm import plain
from ..types import Client, Grant, Order, Part, Reply, Served, Serving, State, Work
from .local import Train, answer, measured, remember, score_of, section
from .masks import complement, erk, largest, masked, packed, prunable, regrown, unpacked, unpruned
from .merge import Weight, changes, stepped, weight_of


def thin(order: Order, client: Client) -> tuple[Params, Cover]:
    """The client's whole model, zero where the order's cover masks it; and what of it is not zero for good."""
    model, width, names = client.model, client.device.width, prunable(client.model)
    zero = {k: torch.zeros_like(v) if k in names else v for k, v in model.params().items()}
    cover = Cover(plain(order.cover.spans, width))
    whole = put(zero | section(client.memory, "model"), cover, plain(order.params, width))
    return whole, cover.only(names.__contains__) | unpruned(model)


@dataclass(frozen=True)
class Masked(Part):
    """A net of which single weights are zero and stay zero: the parts below differ in how masks change."""

    train: Train = Train()

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent."""
        return Grant(cover)

    def serve(self, order: Order, client: Client) -> Serving:
        """What it would receive, under its mask."""
        whole, _ = thin(order, client)
        if order.norm == "post-hoc":
            tuned: Fitted = yield self.train.fit(order, client, whole, epochs=0)
            whole = tuned.params
        return Served(client.model, whole, order.norm)


@dataclass(frozen=True)
class Ticket(Masked):
    """LotteryFL's client: once its model is good it loses its smallest weights, and starts again from the first ones.

    It is good with an accuracy above ``accuracy`` on the client's validation data (on its training data, if it has no
    others).  Each time a share ``prune`` of what is left in each tensor goes, until ``target`` of all is left.
    """

    accuracy: float = 0.2
    prune: float = 0.1
    target: float = 0.5
    rewind: bool = True

    def grant(self, cover: Cover, model: Model) -> Grant:
        """A part of what was sent."""
        return Grant(cover, frozenset({"same", "mask"}))

    def __call__(self, order: Order, client: Client) -> Work:
        """Look, prune perhaps, train, answer."""
        whole, free = thin(order, client)
        names, cover = prunable(client.model), order.cover
        alive = {k: free[k].dense() for k in names if k in free}
        left = sum(int(m.sum()) for m in alive.values()) / max(sum(client.model.whole[k].numel for k in names), 1)
        if self.accuracy < math.inf and left > self.target:
            data = client.val if client.counts.get("val") else client.train
            seen: Scored = yield Evaluate(client.model, client.task, whole, data, order.norm)
            if score_of(seen, "accuracy") > self.accuracy:
                kept = {k: largest(whole[k], m.sum() - math.floor(self.prune * m.sum()), m) for k, m in alive.items()}
                free = Cover.masks(kept) | unpruned(client.model)
                cover = Cover(dict(cover.spans) | {k: free.spans.get(k) for k in kept})
                first = client.model.params() if self.rewind else whole
                again = {k: first[k] if k in client.model.trainable else v for k, v in whole.items()}
                whole = {k: torch.where(kept[k], v, 0.0) if k in kept else v for k, v in again.items()}
        out: Fitted = yield self.train.fit(order, client, whole, free=free)
        metrics = yield from measured(order, client, out)
        memory = remember(model=self.train.kept(order, client, out.params))
        return answer(order, client, out.params, metrics, cover), memory


@dataclass(frozen=True)
class Regrow(Masked):
    r"""FedSpa's client: after training under its mask, the smallest weights go and as many others come.

    The share of each tensor that changes is :math:`\tfrac{a_0}{2} (1 + \cos(\pi t / T))`, with T the ``horizon``; those
    with the largest ``gradient`` of one batch come, or ``random`` ones; with ``nothing`` the mask stays.
    """

    rate: float = 0.5
    horizon: int = 100
    grow: Literal["gradient", "random", "nothing"] = "gradient"

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was sent, and the next mask, eight weights a byte."""
        packed = {f"mask/{k}": (torch.uint8, (-(-model.whole[k].numel // 8),)) for k in prunable(model)}
        return Grant(cover, extras=packed if self.grow != "nothing" else {})

    def share(self, round: int) -> float:
        """How much of each tensor changes in this round."""
        return self.rate / 2 * (1 + math.cos(math.pi * min(round, self.horizon) / self.horizon))

    def __call__(self, order: Order, client: Client) -> Work:
        """Train, drop, grow, answer."""
        whole, free = thin(order, client)
        out: Fitted = yield self.train.fit(order, client, whole, free=free)
        metrics = yield from measured(order, client, out)
        extra: Params = {}
        if self.grow != "nothing":
            score, key = out.params, client.key.at("grow")
            if self.grow == "gradient":
                at = (client.model, client.task, out.params, client.train, key, self.train.batch, order.norm)
                score = (yield Gradient(*at)).params
            for k in prunable(client.model):
                alive = free[k].dense() if k in free else torch.zeros(client.model.shapes[k], dtype=torch.bool)
                luck = torch.rand(alive.shape, generator=key.at(k).torch())
                wish = luck if self.grow == "random" else score[k]
                extra[f"mask/{k}"] = packed(regrown(out.params[k], alive, wish, self.share(order.round)))
        memory = remember(model=self.train.kept(order, client, out.params))
        return answer(order, client, out.params, metrics, extra=extra), memory


@dataclass(frozen=True)
class Complementary(Masked):
    """CS's client: trains every weight, from a sparse model, and sends those that it was not sent.

    Sent a whole model, it sends that back.
    """

    def grant(self, cover: Cover, model: Model) -> Grant:
        """What was not sent."""
        return Grant(complement(cover, model), frozenset({"same", "mask"}))

    def __call__(self, order: Order, client: Client) -> Work:
        """Train, answer."""
        whole, _ = thin(order, client)
        out: Fitted = yield self.train.fit(order, client, whole)
        metrics = yield from measured(order, client, out)
        memory = remember(model=self.train.kept(order, client, out.params))
        return answer(order, client, out.params, metrics, complement(order.cover, client.model)), memory


# ---- what goes down
@dataclass(frozen=True)
class Remembered(Part):
    """The weights of the client's own mask: that which its last reply was about; before it has one, everything."""

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """What each client's last reply was about."""
        return {**(note or {}), **{r.client: r.cover for r in replies}}

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The client's mask, and all that is never pruned."""
        cover = (state.notes.get("send") or {}).get(client)
        if cover is None:
            return model.whole
        return Cover({k: cover.spans.get(k) for k in prunable(model)}) | unpruned(model)


@dataclass(frozen=True)
class OwnMask(Part):
    """The weights of the client's own mask, ``density`` of all: at first random ones, then those that it says."""

    density: float = 0.5

    def learn(self, note: Any, state: State, replies: Sequence[Reply], fleet: Fleet) -> Any:
        """Each client's next mask."""
        new = {r.client: {k: v for k, v in r.extra.items() if k.startswith("mask/")} for r in replies}
        return {**(note or {}), **{i: m for i, m in new.items() if m}}

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """The client's mask, and all that is never pruned."""
        shapes = {k: model.shapes[k] for k in prunable(model)}
        told = (state.notes.get("send") or {}).get(client)
        if told is not None:
            return masked(model, {k: unpacked(told[f"mask/{k}"], s) for k, s in shapes.items()})
        first, keep = Key(key.seed).at("mask", client), erk(shapes, self.density)
        masks = {k: torch.zeros(math.prod(s), dtype=torch.bool) for k, s in shapes.items()}
        for k, mask in masks.items():
            mask[first.at(k).permutation(len(mask))[: keep[k]]] = True
        return masked(model, {k: m.view(shapes[k]) for k, m in masks.items()})


@dataclass(frozen=True)
class Nonzero(Part):
    """The weights that are not zero, and all that is never pruned."""

    def __call__(self, state: State, client: int, device: Device, model: Model, key: Key) -> Cover:
        """What a pruned model has."""
        return masked(model, {k: state.params[k] != 0 for k in prunable(model)})


@dataclass(frozen=True)
class Sparsified(Part):
    r"""CS's server: what came is added, and the smallest weights of each tensor go.

    .. math:: \theta_{dense} = \theta^t + \eta \sum_i n_i \bar M \odot \theta_i / \sum_i n_i, \qquad
        \theta^{t+1} = \theta_{dense} \text{ without the share } \sigma \text{ that is the smallest}

    As long as no weight is zero the step is the plain mean, as it is for all that is never pruned.
    """

    sparsity: float = 0.5
    lr: float = 1.5
    weight: Weight = "samples"

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise ValueError(f"sparsity is a share of the weights between 0 and 1, not {self.sparsity}")

    def __call__(self, state: State, replies: Sequence[Reply]) -> Params:
        """The next global model."""
        dense = self.dense(state, replies)
        return {k: torch.where(self.kept(v), v, 0.0) if self.thins(v) else v for k, v in dense.items()}

    def dense(self, state: State, replies: Sequence[Reply]) -> Params:
        """The model before weights go."""
        num, den = changes(state, replies, lambda r: weight_of(r, self.weight))

        def rate(k: str) -> float:
            return self.lr if self.thins(state.params[k]) and bool((state.params[k] == 0).any()) else 1.0

        return stepped(
            dict(state.params), {k: rate(k) * v / torch.where(den[k] > 0, den[k], 1.0) for k, v in num.items()}
        )

    def thins(self, t: Tensor) -> bool:
        """Are these weights? (Those with two axes or more, as for the clients.)"""
        return t.dim() > 1 and t.is_floating_point()

    def kept(self, t: Tensor) -> Tensor:
        """The mask of those that stay."""
        return largest(t, t.numel() - math.floor(self.sparsity * t.numel() + 1e-9))
