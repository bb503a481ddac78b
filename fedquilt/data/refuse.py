"""What is wrong with data, said by client and row before any work; and what is merely to be known."""

from __future__ import annotations

import torch
from torch import Tensor

from .dataset import Dataset
from .index import SPLITS, Index, doubles


def refuse(data: Dataset, parts: Index, overlap: bool) -> None:
    """Raise a sentence that names the client and the row.

    With ``overlap`` a row may be held by several clients, but what somebody trains on or picks by is
    in nobody's test part.
    """
    if not len(parts):
        raise ValueError(f"{data.name}: nobody has data")
    total = torch.stack([parts.sizes(s) for s in SPLITS]).sum(0)
    if bool((total == 0).any()):
        raise ValueError(f"client {parts.clients[int((total == 0).int().argmax())]} has no data")
    for s in SPLITS:
        empty = parts.sizes(s) == 0
        if bool(empty.any()):
            client = parts.clients[int(empty.int().argmax())]
            raise ValueError(f"client {client} has no {s} samples; three parts need three samples at least")
    for s in SPLITS:
        rows = parts.rows[s]
        outside = ((rows < 0) | (rows >= len(data))).nonzero().flatten()
        if len(outside):
            client, row = owner(parts, s, int(outside[0])), int(rows[outside[0]])
            raise ValueError(f"client {client}: row {row} is not one of the {len(data)} of {data.name}")
    (_sides if overlap else _once)(parts)
    _numbers(data, parts)


def owner(parts: Index, split: str, at: int) -> int:
    """The client who has the row at this place of a part."""
    return parts.clients[int(torch.searchsorted(parts.ends[split], at, right=True)) - 1]


# ---- numbers
def _numbers(data: Dataset, parts: Index) -> None:
    x = data.x
    bad = ~torch.isfinite(x).reshape(len(data), -1).all(1) if x.is_floating_point() else None
    _first(data, parts, bad, "holds a number that is not finite")
    y = data.y.reshape(len(data), -1)
    if y.is_floating_point():
        _first(data, parts, ~torch.isfinite(y).all(1), "has a target that is not finite")
    else:
        wrong = ((y < 0) | (y >= data.classes)).any(1)
        what = f"has a label that is not one of the {data.classes} classes (0 to {data.classes - 1})"
        _first(data, parts, wrong, what)


def _first(data: Dataset, parts: Index, bad: Tensor | None, what: str) -> None:
    """Refuse the first client that holds a bad row."""
    if bad is None or not bool(bad.any()):
        return
    hits = [(owner(parts, s, int(at[0])), s, int(at[0])) for s in SPLITS if len(at := bad[parts.rows[s]].nonzero())]
    if hits:
        client, s, seat = min(hits, key=lambda h: (h[0], SPLITS.index(h[1])))
        raise ValueError(f"client {client}, {s} part: {data.place(int(parts.rows[s][seat]))} {what}")


# ---- who has what
def _once(parts: Index) -> None:
    """A row is in one part of one client, except that all test parts may double as validation."""
    splits = [s for s in SPLITS if not (s == "val" and doubles(parts))]
    rows = torch.cat([parts.rows[s] for s in splits])
    holders = torch.cat([parts.holders(s) for s in splits])
    kinds = torch.repeat_interleave(
        torch.tensor([SPLITS.index(s) for s in splits]), torch.tensor([len(parts.rows[s]) for s in splits])
    )
    order = (holders * len(SPLITS) + kinds).argsort(stable=True)  # client by client, part by part
    order = order[rows[order].argsort(stable=True)]
    again = (rows[order][1:] == rows[order][:-1]).nonzero().flatten()
    if not len(again):
        return
    seat = torch.empty_like(order)
    seat[(holders * len(SPLITS) + kinds).argsort(stable=True)] = torch.arange(len(order))
    second = again[seat[order[again + 1]].argmin()]
    a, b = int(order[second]), int(order[second + 1])
    told = [(SPLITS[int(kinds[i])], parts.clients[int(holders[i])]) for i in (a, b)]
    raise ValueError(
        f"row {int(rows[a])} is in the {told[0][0]} part of client {told[0][1]} "
        f"and in the {told[1][0]} part of client {told[1][1]}"
    )


def _sides(parts: Index) -> None:
    """A client has a row once; what is in a train part is in nobody's test part, nor in anybody's validation part."""
    sides = ("train", "test") if doubles(parts) else SPLITS
    for s in sides:
        pairs = torch.stack([parts.holders(s), parts.rows[s]], 1)
        found, times = pairs.unique(dim=0, return_counts=True)
        if bool((times > 1).any()):
            client, row = found[int(times.argmax())].tolist()
            raise ValueError(f"row {row} is twice in the {s} part of client {parts.clients[client]}")
    for i, a in enumerate(sides):
        for b in sides[i + 1 :]:
            shared = torch.isin(parts.rows[b], parts.rows[a]).nonzero().flatten()
            if len(shared):
                at = int(shared[0])
                row = int(parts.rows[b][at])
                first = owner(parts, a, int((parts.rows[a] == row).nonzero()[0]))
                second = owner(parts, b, at)
                raise ValueError(
                    f"row {row} is in the {a} part of client {first} and in the {b} part of client {second}"
                )


# ---- what is counted
def repeats(data: Dataset, parts: Index) -> dict[str, int]:
    """How many samples say again, byte for byte, what another row says.

    ``samples``: all but one of each; ``across clients``: those that are not with the first one's
    client; ``train in test``: the rows of test parts whose content somebody trains on.
    """
    splits = ("train", "test") if doubles(parts) else SPLITS
    rows = torch.cat([parts.rows[s] for s in splits])
    holders = torch.cat([parts.holders(s) for s in splits])
    rows, first = _distinct(rows)
    holders, contents = holders[first], data.contents[rows]
    order = contents.argsort(stable=True)
    same = contents[order][1:] == contents[order][:-1]
    begins = torch.ones(len(order), dtype=torch.bool)
    begins[1:] = ~same
    heads = holders[order][begins][begins.long().cumsum(0) - 1]
    train = torch.isin(data.contents[parts.rows["test"]], data.contents[parts.rows["train"]])
    return {
        "samples": int(same.sum()),
        "across clients": int((heads != holders[order]).sum()),
        "train in test": int(train.sum()),
    }


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows, each once and sorted, and where each stands first."""
    order = rows.argsort(stable=True)
    begins = torch.ones(len(order), dtype=torch.bool)
    begins[1:] = rows[order][1:] != rows[order][:-1]
    return rows[order][begins], order[begins]
