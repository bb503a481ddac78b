"""Which units of a net are personal enough to be shared, found again when the data have changed."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..cover import Cover, Params
from ..fit import Evaluate, Fitted, Scored
from ..model import Model
from ..types import Client, Grant, Order, Part, Reply, Served, Serving, Work
from .importance import best, granted, told, unit_scores
from .local import Train, answer, measured, remember, score_of, section, sewn, spoken

METRICS = frozenset({"loss", "anew", "halted"})


@dataclass(frozen=True)
class Personalised(Part):
    """Mishra and Gupta's client of sufficient means: the units of greatest l2 norm are personal, and are shared.

    The share ``ratio`` of each group is pruned from what travels, and kept: it stays with the client as it is.  In a
    round all of the net trains for the share ``early`` of the epochs, then the personal units alone.  Which these are
    is found after the early epochs of the client's first round, and again when what it holds and receives falls on
    validation data below ``threshold`` times the best since then (``relative``), and by more than ``sure`` standard
    deviations of what chance makes of an accuracy on so many samples: few samples vary by as much as a change of the
    data does.  Or, as the paper has it, below ``threshold`` itself, once that has been reached.
    """

    train: Train = Train()
    ratio: float = 0.25
    early: float = 0.25
    threshold: float = 0.8
    relative: bool = True
    sure: float = 2.0

    def __post_init__(self) -> None:
        for name in ("ratio", "early", "threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, from 0 to 1, not {getattr(self, name)}")
        if not self.sure >= 0:
            raise ValueError(f"sure is a number of standard deviations, at least 0, not {self.sure}")

    def grant(self, cover: Cover, model: Model) -> Grant:
        """Any of the units, whatever was sent, and which these are."""
        return Grant(model.whole, frozenset({"same", "whole", "block"}), granted(model), METRICS)

    # ---- whether, and which
    def looked(self, order: Order, client: Client, whole: Params) -> Generator[Any, Any, tuple[bool, float | None]]:
        """Are the personal units to be found (again)?  And the best score since they were."""
        if not section(client.memory, "kept"):
            return True, None
        seen: Scored = yield Evaluate(client.model, client.task, whole, client.val, order.norm)
        score = score_of(seen, "accuracy") if seen.metrics else None
        known = client.memory.facts.get("best")
        before = float(known) if isinstance(known, (int, float)) else None
        if score is None or before is None:
            return False, score if before is None else before
        if self.fallen(score, before, client.counts.get("val", 0)):
            return True, None
        return False, max(score, before)

    def fallen(self, score: float, before: float, samples: int = 0) -> bool:
        """Has the score, on so many samples (0: not known), fallen too far below the best before?"""
        if not self.relative:
            return score < self.threshold <= before
        if before < 0:  # no accuracy, but minus a loss
            return score * self.threshold < before
        luck = math.sqrt((score * (1 - score) + before * (1 - before)) / samples) if samples else 0.0
        return score < before * self.threshold and before - score > self.sure * luck

    def shared(self, order: Order, client: Client, start: Params, epochs: int, anew: bool) -> Generator[Any, Any, Any]:
        """The trainings of so many epochs from ``start``, and the personal units."""
        early = min(epochs, max(1, math.ceil(self.early * epochs - 1e-9))) if epochs else 0
        outs: list[Fitted] = []
        if early:
            outs.append((yield self.train.fit(order, client, start, epochs=early)))
        held: Mapping[str, Tensor] = section(client.memory, "kept")
        params = outs[-1].params if outs else start
        if anew or not held:
            scores = unit_scores(client.model, {k: params[k] for k in client.model.trainable}, "l2")
            sub = best(client.model, scores, 1 - self.ratio)
        else:
            sub = client.model.cover(held)
        if early < epochs:
            late = {"key": client.key.at("late"), "epochs": epochs - early, "free": sub}
            outs.append((yield self.train.fit(order, client, params, **late)))
        return outs, sub

    # ---- the work
    def __call__(self, order: Order, client: Client) -> Work:
        """Look, train, find what is personal, answer with it."""
        whole = sewn(order, client)
        anew, score = yield from self.looked(order, client, whole)
        outs, sub = yield from self.shared(order, client, whole, epochs_of(self.train), anew)
        return (yield from self.told(order, client, joined(outs), sub, anew, score))

    def told(
        self,
        order: Order,
        client: Client,
        out: Fitted,
        sub: Cover,
        anew: bool,
        score: float | None,
        halted: int = 0,
        own: Mapping[str, Params] | None = None,
    ) -> Generator[Any, Any, tuple[Reply, Any]]:
        """The reply of a client with these personal units, and its memory; ``own`` is what else it keeps."""
        m = client.model
        metrics = yield from measured(order, client, out)
        units = m.units(sub)
        metrics |= {"anew": float(anew), "halted": float(halted)}
        reply = answer(order, client, dict(out.params), metrics, spoken(order, m, sub), told(m, units))
        return reply, remember({"best": score}, model=out.params, kept=units, **(own or {}))

    def serve(self, order: Order, client: Client) -> Serving:
        """Its whole net, with what it would receive."""
        return (yield from ready(self.train, order, client, client.model, sewn(order, client)))


# ---- what its companions use too
def epochs_of(train: Train) -> int:
    """How many epochs a training has: here a number, since shares of it are taken."""
    if not isinstance(train.epochs, int):
        raise ValueError("epochs is a number here: shares of it are taken")
    return train.epochs


def joined(outs: Sequence[Fitted]) -> Fitted:
    """Trainings one after another, as one."""
    samples = sum(o.samples for o in outs)
    loss = sum(o.loss * o.samples for o in outs) / max(samples, 1)
    return replace(outs[-1], loss=loss, steps=sum(o.steps for o in outs), samples=samples)


def ready(train: Train, order: Order, client: Client, model: Model, params: Params) -> Serving:
    """This net as the client would use it: with statistics of its own data where the policy says so."""
    if order.norm == "post-hoc":
        tuned: Fitted = yield train.fit(
            order, replace(client, model=model), params, key=client.key.at("ready"), epochs=0, terms=()
        )
        params = tuned.params
    return Served(model, params, order.norm)
