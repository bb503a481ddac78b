"""The clients' side: an order comes in, the bytes of a reply go out, and the client's memory stays.

The simulator, a worker process and a real device all do it here, so they give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ..cover import Cover
from ..engine import Done, Engine, Failed, Job
from ..fit import SGD, Fit
from ..fleet import Fleet
from ..key import Key
from ..meter import Usage
from ..model import Model
from ..norm import plain
from ..store import InRam, Memories, StoreError
from ..task import Task
from ..types import EVERYONE, Client, Grant, Local, Memory, Order, Part, Reply, Served, Serving, Work
from .wire import encode_reply

Scores = dict[str, dict[str, float]]  # of each split, each metric


@dataclass(frozen=True, eq=False)
class Worked:
    """What came of an order: the bytes of the reply (None: the work failed, and why), and what was executed."""

    reply: bytes | None
    usage: Usage = Usage()
    reason: str = ""


class Site(Protocol):
    """Where orders are worked on and models scored."""

    def work(self, orders: Sequence[Order]) -> list[Worked]: ...
    def score(self, orders: Sequence[Order], splits: Sequence[str]) -> list[Scores]: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class Here:
    """The clients of this process.

    ``shares`` says how many samples each part of a client's data has (``counts``) and which classes it
    holds (``labels``); ``engine`` knows where those data are.
    """

    local: Local
    model: Model
    task: Task
    fleet: Fleet
    shares: Any
    engine: Engine
    memories: Memories = field(default_factory=InRam)

    def client(self, order: Order, purpose: str) -> Client:
        """All that local work may see, under the version of its memory that the order names."""
        i = order.client
        memory = Memory() if i == EVERYONE else self.memories.load(i, order.version)
        some = next(iter(self.fleet.devices)) if i == EVERYONE else i
        device = self.fleet.device(some, order.round, Key(order.seed).at("fleet"))
        key = Key(order.seed).at(order.round, purpose, i)
        since = self.shares.since(order.round)
        counts, labels = self.shares.counts(i, since), self.shares.labels(i, since)
        return Client(i, self.model, self.task, memory, device, key, counts, labels, since)

    def work(self, orders: Sequence[Order]) -> list[Worked]:
        """Do the work of these orders.  A memory is stored before its reply leaves."""
        jobs, lost = [], {}
        for order in orders:
            try:
                jobs.append(Job(self.local, order, self.client(order, "work")))
            except StoreError as error:
                lost[id(order)] = Failed(f"{type(error).__name__}: {error}", error)
        done = dict(zip([id(j.order) for j in jobs], self.engine.run(jobs), strict=True)) | lost
        return [self._worked(order, done[id(order)]) for order in orders]

    def _worked(self, order: Order, done: Done | Failed) -> Worked:
        if isinstance(done, Failed):
            return Worked(None, reason=done.reason)
        reply, memory = cast(tuple[Reply, Memory], done.value)
        self.memories.save(order.client, order.round + 1, memory, order.version)
        return Worked(encode_reply(reply, order), done.usage)

    def score(self, orders: Sequence[Order], splits: Sequence[str]) -> list[Scores]:
        """Score the model that each of these clients would use (an order to ``EVERYONE``: the global model)."""
        jobs = [Job(self._serving(o), o, self.client(o, "serve"), tuple(splits)) for o in orders]
        out = []
        for done in self.engine.run(jobs):
            if isinstance(done, Failed):
                raise done.error
            out.append({split: dict(scored.metrics) for split, scored in cast(dict[str, Any], done.value).items()})
        return out

    def _serving(self, order: Order) -> Local:
        if order.client == EVERYONE:
            return Global()
        return Adapted(self.local) if order.scalars.get("adapt") else self.local

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Global(Part):
    """Serves the server's model as it is; statistics that it does not have are taken over everybody's training data."""

    def __call__(self, order: Order, client: Client) -> Work:
        """The global model does not train: it is scored."""
        raise TypeError("the global model is scored, not trained")

    def grant(self, cover: Cover, model: Model) -> Grant:
        """Nothing comes back."""
        return Grant(Cover({}))

    def serve(self, order: Order, client: Client) -> Serving:
        """The server's parameters, whole."""
        params = client.model.params() | plain(order.params, 1.0)
        if order.norm not in ("post-hoc", "personal"):
            return Served(client.model, params, order.norm)
        fitted = yield Fit(
            client.model, client.task, params, client.train, client.key, SGD(0.0), epochs=0, norm="post-hoc"
        )
        return Served(client.model, fitted.params, "post-hoc")


def trainer(local: object) -> object:
    """The plain training inside a local: it has an ``optim``, a ``batch``, and ``epochs`` or ``steps``."""
    while not hasattr(local, "optim") and hasattr(local, "train"):
        local = local.train
    return local


@dataclass(frozen=True)
class Adapted(Part):
    """Serves what ``local`` would, after as long a training on the client's own data as a round's work is."""

    local: Local

    def __call__(self, order: Order, client: Client) -> Work:
        """An adapted model is scored; nothing of it travels."""
        raise TypeError("an adapted model is scored, not trained on")

    def grant(self, cover: Cover, model: Model) -> Grant:
        """Nothing comes back."""
        return Grant(Cover({}))

    def serve(self, order: Order, client: Client) -> Serving:
        """The client's model, trained on with the method's own settings."""
        served: Served = yield from self.local.serve(order, client)
        said = trainer(self.local)
        optim, epochs = getattr(said, "optim", SGD()), getattr(said, "epochs", 1)
        length = {"epochs": epochs} if isinstance(epochs, int) else epochs.settings(client)
        if hasattr(said, "steps"):
            length = {"steps": said.steps}
        tuned = yield Fit(
            served.model,
            client.task,
            served.params,
            client.train,
            client.key.at("adapt"),
            optim.at(order.round),
            batch=getattr(said, "batch", 32),
            norm=served.norm,
            **length,
        )
        return Served(served.model, tuned.params, served.norm)
