"""Each client's train, validation and test part, resident in memory and checked before any work is done."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from hashlib import blake2b

import torch
from torch import Tensor

from ..key import Key
from ..types import EVERYONE, Handle
from .partition import Partition
from .sources import Dataset

Shares = tuple[float, float, float]
Parts = Mapping[str, Tensor]

SPLITS = ("train", "val", "test")


def parse(text: str) -> Shares:
    """The shares that a text says in per cent: ``60/10/30``; in ``70/0/30`` the test part doubles as validation."""
    try:
        train, val, test = (float(s) / 100 for s in text.split("/"))
    except ValueError:
        raise ValueError(f"a split is train/val/test in per cent, such as 60/10/30, not {text!r}") from None
    _check((train, val, test))
    return train, val, test


def _check(shares: Shares) -> None:
    train, val, test = shares
    if not (train > 0 and val >= 0 and test > 0 and abs(train + val + test - 1) < 1e-6):
        told = "/".join(f"{100 * s:g}" for s in shares)
        raise ValueError(f"a split has a train and a test part and adds up to 100 per cent; {told} does not")


def split(indices: Tensor, key: Key, shares: Shares = (0.6, 0.1, 0.3)) -> dict[str, Tensor]:
    """A client's samples, dealt at random into parts that do not overlap.

    Validation and test have their share, rounded to the nearest number (halves up) but at least one
    sample, and train has the rest: three samples or more leave no part empty.  With fewer, train
    comes first, then test.  If validation has no share, it *is* the test part, and a figure that was
    picked on it must say so.
    """
    _check(shares)
    n = len(indices)
    kept = 1 + (shares[1] > 0 and n > 2)  # samples that are not the test part's, whatever its share
    test = min(_rounded(n, shares[2]), max(0, n - kept))
    val = min(_rounded(n, shares[1]), max(0, n - 1 - test)) if shares[1] else 0
    mixed = indices[key.permutation(n)]
    parts = [part.sort().values for part in mixed.split([n - val - test, val, test])]
    return dict(zip(SPLITS, parts if shares[1] else (parts[0], parts[2], parts[2]), strict=True))


def _rounded(n: int, share: float) -> int:
    return max(1, int(n * share + 0.5 + 1e-9))


class Shards:
    """The data of all clients: ``shards[Handle(client, "train")]`` is its ``(x, y)``, contiguous, no copy.

    ``parts`` says which rows of ``data`` are in whose train, val and test part.  It is refused if a
    part is empty, a row is used twice, an input is not finite or a label is not one of the classes.
    Only if every client's whole test part is its validation part too may the two overlap.
    """

    def __init__(self, data: Dataset, parts: Mapping[int, Parts]) -> None:
        self.data = data
        none = torch.zeros(0, dtype=torch.int64)
        self.parts = {client: {s: parts[client].get(s, none) for s in SPLITS} for client in sorted(parts)}
        _refuse(data, self.parts)
        self._held: dict[Handle, tuple[Tensor, Tensor]] = {}
        self._pool: dict[str, tuple[Tensor, Tensor]] = {}
        for s in SPLITS:
            if s == "test" and self.doubles:
                self._pool[s] = self._pool["val"]
                self._held |= {Handle(c, s): self._held[Handle(c, "val")] for c in self.parts}
                continue
            rows = torch.cat([p[s] for p in self.parts.values()])
            self._pool[s] = x, y = data.x[rows], data.y[rows]
            sizes = [len(p[s]) for p in self.parts.values()]
            for client, cx, cy in zip(self.parts, x.split(sizes), y.split(sizes), strict=True):
                self._held[Handle(client, s)] = cx, cy

    def __getitem__(self, handle: Handle) -> tuple[Tensor, Tensor]:
        if handle.client == EVERYONE and handle.split in self._pool:
            return self._pool[handle.split]
        if handle not in self._held:
            raise KeyError(f"no data of client {handle.client} are called {handle.split!r}")
        return self._held[handle]

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients' ids, sorted."""
        return tuple(self.parts)

    @cached_property
    def doubles(self) -> bool:
        """Does the test part double as validation (so that a figure picked on it is not held out)?"""
        return _doubles(self.parts)

    @property
    def pooled_test(self) -> tuple[Tensor, Tensor]:
        """The test parts of all clients, one after another."""
        return self._pool["test"]

    def counts(self, client: int) -> dict[str, int]:
        """How many samples each part of a client has (of all together, if it is ``EVERYONE``)."""
        if client == EVERYONE:
            return {s: len(self._pool[s][1]) for s in SPLITS}
        return {s: len(rows) for s, rows in self.parts[client].items()}

    def labels(self, client: int) -> Tensor:
        """The classes that occur in a client's train part, sorted (none where targets are not classes)."""
        y = self[Handle(client, "train")][1]
        return torch.zeros(0, dtype=torch.int64) if y.is_floating_point() else y.unique()

    @cached_property
    def fingerprint(self) -> str:
        """A short name for these samples in this distribution, equal in every process."""
        h = blake2b(digest_size=16)
        tensors = {"x": self.data.x, "y": self.data.y}
        tensors |= {f"{client} {s}": rows for client, p in self.parts.items() for s, rows in p.items()}
        for name, t in tensors.items():
            h.update(f"{name} {t.dtype} {tuple(t.shape)}\n".encode())
            h.update(t.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        return h.hexdigest()


def deal(data: Dataset, clients: int, partition: Partition, key: Key, shares: Shares = (0.6, 0.1, 0.3)) -> Shards:
    """The data, shared out among clients and each share split."""
    owned = partition(data.y, clients, key.at("partition"))
    return Shards(data, {i: split(rows, key.at("split", i), shares) for i, rows in enumerate(owned)})


def _doubles(parts: Mapping[int, Parts]) -> bool:
    return all(torch.equal(p["val"], p["test"]) for p in parts.values())


# ---- what is refused before any work
def _refuse(data: Dataset, parts: Mapping[int, Parts]) -> None:
    """Raise a sentence that names the client and the row."""
    if not parts:
        raise ValueError(f"{data.name}: nobody has data")
    for client, p in parts.items():
        if not sum(len(rows) for rows in p.values()):
            raise ValueError(f"client {client} has no data")
        for s, rows in p.items():
            if not len(rows):
                raise ValueError(f"client {client} has no {s} samples; three parts need three samples at least")
            if rows.dtype != torch.int64:
                raise ValueError(f"client {client}: the rows of its {s} part are int64 numbers, not {rows.dtype}")
            outside = rows[(rows < 0) | (rows >= len(data))]
            if len(outside):
                raise ValueError(f"client {client}: row {int(outside[0])} is not one of the {len(data)} of {data.name}")
    _once(parts)
    bad = ~torch.isfinite(data.x).reshape(len(data), -1).all(1) if data.x.is_floating_point() else None
    _first(parts, bad, "holds a number that is not finite")
    y = data.y.reshape(len(data), -1)
    if y.is_floating_point():
        _first(parts, ~torch.isfinite(y).all(1), "has a target that is not finite")
    else:
        wrong = ((y < 0) | (y >= data.classes)).any(1)
        _first(parts, wrong, f"has a label that is not one of the {data.classes} classes (0 to {data.classes - 1})")


def _first(parts: Mapping[int, Parts], bad: Tensor | None, what: str) -> None:
    """Refuse the first client that holds a bad row."""
    if bad is None or not bool(bad.any()):
        return
    for client, p in parts.items():
        for s, rows in p.items():
            hit = rows[bad[rows]]
            if len(hit):
                raise ValueError(f"client {client}, {s} part: row {int(hit[0])} {what}")


def _once(parts: Mapping[int, Parts]) -> None:
    """A row is in one part of one client, except that all test parts may double as validation."""
    seen: dict[int, tuple[int, str]] = {}
    doubles = _doubles(parts)
    for client, p in parts.items():
        for s in SPLITS:
            if s == "val" and doubles:
                continue
            for row in p[s].tolist():
                if row in seen:
                    other, part = seen[row]
                    raise ValueError(
                        f"row {row} is in the {part} part of client {other} and in the {s} part of client {client}"
                    )
                seen[row] = client, s
