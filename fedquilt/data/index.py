"""Which rows are whose: two vectors a part, however many clients there are; views are made when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import torch
from torch import Tensor

SPLITS = ("train", "val", "test")
NONE = torch.zeros(0, dtype=torch.int64)
BLOCK = 4096  # clients


@dataclass(frozen=True, eq=False)
class Index(Mapping[int, Mapping[str, Tensor]]):
    """``index[client]["train"]`` are the rows of a client's train part.

    ``rows`` has those of all clients one after another, and ``ends`` where each client's begin and
    end (one more than there are clients).  ``clients`` are sorted.
    """

    clients: tuple[int, ...]
    rows: Mapping[str, Tensor]
    ends: Mapping[str, Tensor]
    places: Mapping[int, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.places:
            object.__setattr__(self, "places", {client: i for i, client in enumerate(self.clients)})

    def __getitem__(self, client: int) -> Mapping[str, Tensor]:
        at = self.places[client]
        return {s: self.rows[s][self.ends[s][at] : self.ends[s][at + 1]] for s in SPLITS}

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def part(self, client: int, split: str) -> Tensor:
        """The rows of one part of one client."""
        at, ends = self.places[client], self.ends[split]
        return self.rows[split][ends[at] : ends[at + 1]]

    def sizes(self, split: str) -> Tensor:
        """How many rows each client has in a part."""
        return self.ends[split].diff()

    def holders(self, split: str) -> Tensor:
        """For each row in ``rows[split]``, the place of the client who has it."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes(split))


def index(parts: Mapping[int, Mapping[str, Tensor]]) -> Index:
    """The index of parts that are given client by client; a part that is not there is empty."""
    if isinstance(parts, Index):
        return parts
    clients = sorted(parts)
    for client in clients:
        for s, rows in parts[client].items():
            if rows.dtype != torch.int64:
                raise ValueError(f"client {client}: the rows of its {s} part are int64 numbers, not {rows.dtype}")
    return joined(clients, {s: [parts[client].get(s, NONE) for client in clients] for s in SPLITS})


def joined(clients: Sequence[int], parts: Mapping[str, Sequence[Tensor]]) -> Index:
    """The index of parts that are given split by split, in the order of the clients."""
    rows = {s: torch.cat([NONE, *parts[s]]) for s in SPLITS}
    return Index(tuple(clients), rows, {s: ends(len(p) for p in parts[s]) for s in SPLITS})


def gathered(clients: Sequence[int], parts: Iterable[Mapping[str, Tensor]]) -> Index:
    """The index of parts that come client by client, in their order; few small tensors are ever there at once."""
    rows: dict[str, list[Tensor]] = {s: [NONE] for s in SPLITS}
    sizes: dict[str, list[int]] = {s: [] for s in SPLITS}
    coming = iter(parts)
    while some := list(islice(coming, BLOCK)):
        for s in SPLITS:
            rows[s].append(torch.cat([p[s] for p in some]))
            sizes[s] += [len(p[s]) for p in some]
    return Index(tuple(clients), {s: torch.cat(r) for s, r in rows.items()}, {s: ends(n) for s, n in sizes.items()})


def ends(sizes: Iterable[int]) -> Tensor:
    """Where parts of these sizes begin and end."""
    return torch.tensor(list(chain([0], sizes)), dtype=torch.int64).cumsum(0)


def doubles(parts: Index) -> bool:
    """Is every client's test part its validation part too?"""
    return torch.equal(parts.ends["val"], parts.ends["test"]) and torch.equal(parts.rows["val"], parts.rows["test"])
