"""Clients whose own net is larger or smaller than the server's: it and the server's net teach each other."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..cover import Cover, Params, count_units, put, take
from ..fit import Fit, Fitted, Peer, Term
from ..grow import enlarged
from ..model import Model
from ..types import Client, Grant, Order, Part, Serving, Work
from .distil import Attention, Distil, PeerLoss
from .halting import Ask, Piloted, estimates, halting_epoch, pilot
from .importance import granted, unit_scores
from .local import Train, answer, measured, remember, section, sewn
from .personalise import METRICS, Personalised, epochs_of, joined, ready

Halting = Literal["given", "theorem"]
Learnt = tuple[list[Fitted], int, dict[str, Any]]


@dataclass(frozen=True)
class Lessons:
    r"""How a net is taught by a peer, and for how long.

    .. math:: \lambda_1 L + \lambda_2 L_{attention} + \lambda_3 L_{distillation} \; (+ \lambda_4 L_{untrained})

    The first three add up to 1.  ``reverse`` is the share of distillation while the client's own net learns.  Help
    ends after ``until``, a share of the epochs; with ``halting="theorem"`` when Theorem 1 says so for ``epsilon``, with
    estimates from the client's own first round, which serves as pilot.
    """

    shares: tuple[float, float, float] = (0.5, 0.2, 0.3)
    untrained: float = 0.5
    reverse: float = 0.5
    temperature: float = 4.0
    until: float = 0.5
    halting: Halting = "given"
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(f"shares of the losses are none below 0, and add up to 1: not {self.shares}")
        for name in ("untrained", "reverse", "until"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, from 0 to 1, not {getattr(self, name)}")
        if self.halting not in ("given", "theorem"):
            raise ValueError(f"halting is given or theorem, not {self.halting!r}")

    def ends(self, epochs: int) -> int:
        """The last epoch with help, of so many."""
        return min(epochs, max(1, math.ceil(self.until * epochs - 1e-9)))

    def own(self, peer: str) -> dict[str, Any]:
        """What a client's own net minds while the server's teaches it."""
        terms = (Distil(peer, self.reverse, self.temperature),) if self.reverse else ()
        return {"main": 1 - self.reverse, "terms": terms}

    def taught(self, model: Model, peer: str) -> dict[str, Any]:
        """What the server's net minds while a client's own teaches it."""
        first, second, third = self.shares
        terms: list[Term] = [Attention.of(model, peer, second)] if second else []
        return {"main": first, "terms": (*terms, *((Distil(peer, third, self.temperature),) if third else ()))}


@dataclass(frozen=True)
class Helped(Part):
    """A client with a net of its own, besides the server's, which it trains in a training with ``help`` and without."""

    train: Train = Train()
    lessons: Lessons = Lessons()

    def grant(self, cover: Cover, model: Model) -> Grant:
        """Any of the units, whatever was sent, and which these are."""
        return Grant(model.whole, frozenset({"same", "whole", "block"}), granted(model), METRICS)

    def ends(self, client: Client) -> int:
        """The last epoch with help."""
        known, epochs = client.memory.facts.get("halt"), epochs_of(self.train)
        return min(known, epochs) if isinstance(known, int) else self.lessons.ends(epochs)

    def learnt(self, order: Order, client: Client, helped: Ask, alone: Ask) -> Generator[Any, Any, Learnt]:
        """The trainings with help, up to which epoch they went, and what is known of when it may end.

        The first round of a client that goes by the theorem is its pilot: there help goes on to the end.
        """
        facts: dict[str, Any] = {k: v for k, v in client.memory.facts.items() if k == "halt"}
        epochs = epochs_of(self.train)
        if self.lessons.halting == "given" or facts or epochs == 1:
            last = self.ends(client)
            return [(yield helped(None, last, 0))], last, facts
        seen: Piloted = yield from pilot(order, client, epochs, helped, alone)
        lr = self.train.optim.at(order.round).lr
        halt = halting_epoch(self.lessons.epsilon, epochs, lr, **estimates(seen.seen))
        return list(seen.outs), epochs, {"halt": halt}


@dataclass(frozen=True)
class Grown(Helped):
    """Mishra and Gupta's client of colossal means: it holds a larger net, and brings what that knows back.

    The larger net is the server's, grown so that it says the same (``wider``, and ``deeper`` by so many layers, as far
    as the net can be).  In a round the server's net teaches it (reverse distillation), then it teaches the server's,
    in the first epochs beside an untrained net of its form that learns at the same time and has its first
    stage in common with the server's.  All of the server's net goes back; the client uses its own.
    """

    wider: float = 1.5
    deeper: int = 2

    def __post_init__(self) -> None:
        if self.wider < 1 or self.deeper < 0:
            raise ValueError(f"wider is a factor from 1, deeper a number of layers: not {self.wider}, {self.deeper}")

    def large(self, client: Client, base: Params) -> tuple[Model, Params]:
        """The client's own net: as it has it, or grown from what it received."""
        model, grown = enlarged(client.model, base, self.wider, self.deeper, client.key.at("large"))
        return model, section(client.memory, "large") or grown

    def __call__(self, order: Order, client: Client) -> Work:
        """Train the larger net, then teach the server's."""
        base, small, epochs = sewn(order, client), client.model, epochs_of(self.train)
        large, mine = self.large(client, base)
        own = {"key": client.key.at("grow"), "peers": {"base": Peer(small, base)}, **self.lessons.own("base")}
        tuned: Fitted = yield self.train.fit(order, replace(client, model=large), mine, **own)
        trained = {"trained": Peer(large, tuned.params)}
        fresh = Peer(large, large.params(), True, self.common(small, large))

        def helped(after: Fitted | None, n: int, at: int) -> Fit:
            """With the untrained net beside."""
            other = replace(fresh, params=after.peers["fresh"]) if after else fresh
            said = self.lessons.taught(small, "trained")
            said["terms"] = (*said["terms"], PeerLoss("fresh", self.lessons.untrained))
            more = {"peers": {**trained, "fresh": other}, "epochs": n, "key": client.key.at("both", at)}
            return self.train.fit(order, client, after.params if after else base, **said, **more)

        def alone(after: Fitted | None, n: int, at: int) -> Fit:
            """Without it."""
            more = {"peers": trained, "epochs": n, "key": client.key.at("rest", at)}
            return self.train.fit(
                order, client, after.params if after else base, **self.lessons.taught(small, "trained"), **more
            )

        beside = helped if self.lessons.untrained else alone
        outs, last, facts = yield from self.learnt(order, client, beside, alone)
        if last < epochs:
            outs.append((yield alone(outs[0], epochs - last, last)))
        out = joined(outs)
        metrics = yield from measured(order, client, out)
        reply = answer(order, client, dict(out.params), {**metrics, "anew": 0.0, "halted": float(last)})
        kept = self.train.kept(order, client, dict(out.params))
        return reply, remember(facts, large=tuned.params, model=kept)

    def common(self, small: Model, large: Model) -> Mapping[str, str]:
        """The tensors of the first stage, where both nets have them in the same form."""
        first = small.stages[0] + "." if small.stages else " "
        both = small.trainable & large.trainable
        return {k: k for k in sorted(both) if k.startswith(first) and small.shapes[k] == large.shapes[k]}

    def serve(self, order: Order, client: Client) -> Serving:
        """Its own net; before it has one, what it would receive."""
        base = sewn(order, client)
        if not section(client.memory, "large"):
            return (yield from ready(self.train, order, client, client.model, base))
        return (yield from ready(self.train, order, client, *self.large(client, base)))


@dataclass(frozen=True)
class Shrunk(Helped):
    """Mishra and Gupta's client of insufficient means: it holds a smaller net, taught by the server's, and teaches it.

    The smaller net is the share ``smaller`` of the units, those of greatest l2 norm, chosen again in each round
    (dynamic network surgery, Guo, Yao, Chen, NeurIPS 2016): units are pruned, and pruned ones are spliced in again
    when they have come to matter more than those that are there, by a ``margin``.  The server's net is then taught
    for the first epochs, and for the rest trained as by a client of sufficient means, ``personal``.
    """

    smaller: float = 0.5
    margin: float = 0.1
    personal: Personalised = Personalised()

    def __post_init__(self) -> None:
        if not 0 < self.smaller <= 1 or self.margin < 0:
            raise ValueError(f"smaller is a share, margin not below 0: not {self.smaller}, {self.margin}")

    def small(self, client: Client, base: Params) -> tuple[Cover, Params]:
        """The units of the client's own net, and what it knows in all units."""
        m, held = client.model, section(client.memory, "units")
        mine = put(base, m.cover(held), section(client.memory, "small")) if held else base
        scores = unit_scores(m, {k: mine[k] for k in m.trainable}, "l2")
        return m.cover(surgery(scores, held, self.smaller, self.margin)), mine

    def __call__(self, order: Order, client: Client) -> Work:
        """Train the smaller net, teach the server's, find what of that is personal."""
        base, m, epochs = sewn(order, client), client.model, epochs_of(self.train)
        anew, score = yield from self.personal.looked(order, client, base)
        sub, mine = self.small(client, base)
        own = {"key": client.key.at("shrink"), "peers": {"base": Peer(m, base)}, **self.lessons.own("base")}
        tuned: Fitted = yield self.train.fit(order, client, take(mine, sub), **own)
        teacher = {"small": Peer(m, tuned.params)}

        def helped(after: Fitted | None, n: int, at: int) -> Fit:
            """With the smaller net as teacher."""
            more = {"peers": teacher, "epochs": n, "key": client.key.at("taught", at)}
            return self.train.fit(
                order, client, after.params if after else base, **self.lessons.taught(m, "small"), **more
            )

        def alone(after: Fitted | None, n: int, at: int) -> Fit:
            """Without it."""
            key = client.key.at("alone", at)
            return self.train.fit(order, client, after.params if after else base, epochs=n, key=key)

        outs, last, facts = yield from self.learnt(order, client, helped, alone)
        more, shared = yield from self.personal.shared(order, client, outs[-1].params, epochs - last, anew)
        kept = {"small": tuned.params, "units": m.units(sub)}
        reply, memory = yield from self.personal.told(
            order, client, joined([*outs, *more]), shared, anew, score, last, kept
        )
        return reply, replace(memory, facts={**memory.facts, **facts})

    def serve(self, order: Order, client: Client) -> Serving:
        """Its own net; before it has one, the units of greatest norm of what it would receive."""
        sub, mine = self.small(client, sewn(order, client))
        held = section(client.memory, "small")
        return (yield from ready(self.train, order, client, client.model, held or take(mine, sub)))


def surgery(scores: Mapping[str, Tensor], held: Mapping[str, Tensor], ratio: float, margin: float) -> dict[str, Tensor]:
    """The ``max(1, floor(ratio n))`` units of each group of greatest score; one that is held counts ``margin`` more."""
    out = {}
    for g, s in scores.items():
        more = torch.zeros_like(s).index_fill(0, held[g], margin) if g in held else torch.zeros_like(s)
        ranked = (s * (1 + more)).sort(descending=True, stable=True).indices
        out[g] = ranked[: count_units(ratio, len(s))].sort().values
    return out
