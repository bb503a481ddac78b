"""Each client's train, validation and test part, resident in memory and checked before any work is done."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from ..key import Key
from ..types import EVERYONE, Handle
from .changes import Drift
from .dataset import Dataset
from .drift import Drifting
from .index import SPLITS, Index, doubles, gathered, index
from .partition import Partition
from .ready import Prepare
from .refuse import refuse, repeats
from .splits import Shares, checked, parse, split, split_in_time

__all__ = ["SPLITS", "Shards", "Shares", "deal", "parse", "split", "split_in_time"]

Parts = Mapping[str, Tensor]

KEPT = 64 << 20  # bytes of clients' samples that are kept at hand


class Shards:
    """The data of all clients: ``shards[Handle(client, "train")]`` is its ``(x, y)``, contiguous.

    ``parts`` says which rows of ``data`` are in whose train, val and test part.  It is refused if a
    part is empty, a row is used twice, an input is not finite or a label is not one of the classes.
    Only if every client's whole test part is its validation part too may the two overlap; with
    ``overlap`` clients may share rows, but no test row is anybody's train row.  ``unseen`` clients
    never train: what is everybody's has nothing of theirs.

    With a ``drift`` data change over the rounds: a handle's round says when.  The samples are in
    memory once; a client's are gathered when asked for, and the last few kept at hand.
    """

    def __init__(
        self,
        data: Dataset,
        parts: Mapping[int, Parts],
        overlap: bool = False,
        drift: Drifting | None = None,
        unseen: Collection[int] = (),
    ) -> None:
        self.data, self.parts, self.drift, self.unseen = data, index(parts), drift, frozenset(unseen)
        refuse(data, self.parts, overlap)
        if drift is not None:
            drift.check(data, self.parts)
        self._held: OrderedDict[Handle, tuple[Tensor, Tensor]] = OrderedDict()
        self._bytes = 0
        self._drifted: dict[int, Index] = {}

    # ---- samples
    @property
    def prepare(self) -> Prepare:
        """What makes of a batch of samples what a net takes."""
        return self.data.prepare

    def __getitem__(self, handle: Handle) -> tuple[Tensor, Tensor]:
        if handle not in self._held:
            found = self._gathered(handle)
            size = found[0].nbytes + found[1].nbytes
            if size > KEPT // 4:
                return found
            self._held[handle], self._bytes = found, self._bytes + size
            while self._bytes > KEPT:
                _, (x, y) = self._held.popitem(last=False)
                self._bytes -= x.nbytes + y.nbytes
        self._held.move_to_end(handle)
        return self._held[handle]

    def _gathered(self, handle: Handle) -> tuple[Tensor, Tensor]:
        everyone = handle.client == EVERYONE
        if handle.split not in SPLITS or not (everyone or handle.client in self.parts.places):
            raise KeyError(f"no data of client {handle.client} are called {handle.split!r}")
        parts = self.at(handle.round)
        if everyone and self.drift is not None and self.drift.touches:
            each = [self[Handle(i, handle.split, handle.round)] for i in self.clients if i not in self.unseen]
            return torch.cat([x for x, _ in each]), torch.cat([y for _, y in each])
        rows = self._everyone(parts, handle.split) if everyone else parts.part(handle.client, handle.split)
        x, y = self.data.x.index_select(0, rows), self.data.y.index_select(0, rows)
        if self.drift is None or everyone:
            return x, y
        return self.drift.samples(self.data, x, y, handle)

    def _everyone(self, parts: Index, split: str) -> Tensor:
        """The rows of all clients, one after another, but for those who are unseen."""
        if not self.unseen:
            return parts.rows[split]
        hidden = torch.tensor([parts.places[i] for i in sorted(self.unseen)])
        return parts.rows[split][~torch.isin(parts.holders(split), hidden)]

    @property
    def pooled_test(self) -> tuple[Tensor, Tensor]:
        """The test parts of all clients, one after another, but for those who are unseen."""
        return self[Handle(EVERYONE, "test")]

    # ---- what there is
    def __len__(self) -> int:
        return len(self.parts)

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients' ids, sorted."""
        return self.parts.clients

    @cached_property
    def doubles(self) -> bool:
        """Does the test part double as validation (so that a figure picked on it is not held out)?"""
        return doubles(self.parts)

    def counts(self, client: int, round: int = 0) -> dict[str, int]:
        """How many samples each part of a client has (of all together, if it is ``EVERYONE``)."""
        parts = self.at(round)
        if client == EVERYONE:
            return {s: len(self._everyone(parts, s)) for s in SPLITS}
        return {s: len(parts.part(client, s)) for s in SPLITS}

    def sizes(self, round: int = 0) -> dict[int, int]:
        """How many samples each client trains on."""
        return dict(zip(self.clients, self.at(round).sizes("train").tolist(), strict=True))

    def labels(self, client: int, round: int = 0) -> Tensor:
        """The classes that occur in a client's train part, sorted (none where targets are not classes)."""
        y = self[Handle(client, "train", self.since(round))][1]
        return torch.zeros(0, dtype=torch.int64) if y.is_floating_point() else y.unique()

    # ---- change over time
    def since(self, round: int) -> int:
        """The last round, up to this one, in which data changed: what a handle says."""
        return 0 if self.drift is None else self.drift.since(round)

    def at(self, round: int) -> Index:
        """Who has which rows in this round."""
        if self.drift is None:
            return self.parts
        since = self.drift.since(round)
        if since not in self._drifted:
            if len(self._drifted) > 1:  # this round's and the last one's, for orders that are still out
                del self._drifted[min(self._drifted)]
            self._drifted[since] = self.drift.parts(self.data, self.parts, since)
        return self._drifted[since]

    # ---- what stands in the run
    @cached_property
    def fingerprint(self) -> str:
        """A short name for these samples in this distribution, equal in every process."""
        h = blake2b(self.data.fingerprint.encode(), digest_size=16)
        for t in (torch.tensor(self.clients), *self.parts.rows.values(), *self.parts.ends.values()):
            h.update(f"{len(t)}\n".encode())
            h.update(t.contiguous().numpy().data)
        return h.hexdigest()

    @cached_property
    def repeats(self) -> dict[str, int]:
        """How many samples say byte for byte what another row says: in all, across clients, and of training in test."""
        return repeats(self.data, self.parts)


# ---- from a partition to shards
def deal(
    data: Dataset,
    clients: int,
    partition: Partition,
    key: Key,
    shares: Shares = (0.6, 0.1, 0.3),
    drift: Sequence[Drift] = (),
    unseen: float = 0.0,
) -> Shards:
    """The data, shared out among clients and each share split.

    ``drift`` says how they change over time, ``unseen`` which share of the clients never trains.

    What a partition goes by is the name of its first parameter: ``labels``, ``groups`` (the data's
    natural owners), or ``sides``: then it draws each client's part of each side by itself.
    """
    subject = next(iter(signature(partition).parameters))
    ids = tuple(range(clients))
    left = hidden(clients, unseen, key.at("unseen"))
    change = Drifting(tuple(drift), ids, partition, key.at("drift"), left, not shares[1]) if drift else None
    if subject == "sides":
        return Shards(data, _sided(data, clients, partition, key, shares), True, change, left)
    checked(shares)
    owned = [torch.as_tensor(rows) for rows in partition(_subject(data, subject), clients, key.at("partition"))]
    if len(owned) != clients:
        raise ValueError(f"the partition shares the data out among {len(owned)} clients, not {clients}")
    if data.series is not None and data.gap and subject != "groups":
        begins = _begins(data.series[: data.dealt])
        owned = [_whole(begins, part, data.dealt) for part in owned]
    each: Iterator[Parts]
    if data.series is None:
        each = (split(rows, key.at("split", i), shares) for i, rows in enumerate(owned))
    else:
        series = data.series if data.gap else torch.zeros_like(data.series)
        each = (split_in_time(rows, series, data.gap, shares) for rows in owned)
    return Shards(data, gathered(ids, each), drift=change, unseen=left)


def hidden(clients: int, share: float, key: Key) -> frozenset[int]:
    """So many of the clients, one at least if the share is not nought; one at least is left."""
    n = max(1, int(share * clients + 0.5)) if share else 0
    if n and n >= clients:
        raise ValueError(f"of {clients} clients {n} would be unseen, so none would train")
    return frozenset(key.permutation(clients)[:n].tolist())


def _subject(data: Dataset, subject: str) -> Tensor:
    """What a partition goes by: one value a row, or one a series where series stay whole."""
    if subject == "groups":
        if data.groups is None:
            raise ValueError(f"{data.name} does not say to whom its samples belong by nature: there are no groups")
        return data.groups[: data.dealt]
    labels = data.y[: data.dealt]
    return labels[_begins(data.series[: data.dealt])] if data.series is not None and data.gap else labels


def _begins(series: Tensor) -> Tensor:
    """Where each series begins; its samples stand together."""
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), (series.diff() != 0).nonzero().flatten() + 1])
    if len(series[begins].unique()) < len(begins):
        raise ValueError("the samples of a series do not all stand together: sort them by series, then by time")
    return begins


def _whole(begins: Tensor, chosen: Tensor, rows: int) -> Tensor:
    """The rows of these series."""
    ends = torch.cat([begins[1:], torch.tensor([rows])])
    return torch.cat([torch.arange(int(begins[i]), int(ends[i])) for i in chosen.tolist()])


def _sided(
    data: Dataset, clients: int, partition: Callable[..., Any], key: Key, shares: Shares
) -> dict[int, dict[str, Tensor]]:
    """Parts that a partition draws from each side: the data's own test part, where there is one, is the test side."""
    if data.series is not None and data.gap:
        raise ValueError(
            f"{data.name} comes in series, whose neighbours share values: its samples cannot be drawn singly"
        )
    rows = torch.arange(len(data))
    if not data.own_test:
        pools = split(rows, key.at("sides"), shares)
    else:
        learn, test = rows[: data.dealt], rows[data.dealt :]
        pools = {"train": learn, "val": test, "test": test}
        if shares[1]:
            train = shares[0] / (shares[0] + shares[1])
            cut = split(learn, key.at("sides"), (train, 0.0, 1 - train))
            pools |= {"train": cut["train"], "val": cut["test"]}
    drawn = partition({s: data.y[pools[s]] for s in SPLITS}, clients, key.at("partition"))
    out = {i: {s: pools[s][mine[s]] for s in SPLITS} for i, mine in enumerate(drawn)}
    if not shares[1]:
        out = {i: p | {"val": p["test"]} for i, p in out.items()}
    return out
