"""Who gets which samples.  A partition is a pure function: what it goes by, number of clients and key in, indices out.

The name of its first parameter says what it goes by: ``labels``, ``groups`` (to whom each sample
belongs by nature) or ``sides`` (the labels of the train, val and test side; it then gives every
client its part of each).  The index vectors are sorted, and no sample goes to two clients, unless a
partition says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..key import Key
from ..models.own import found, is_own, parted
from ..schema import named, worded
from .natural import groups, natural
from .sides import overlapping, shards

Partition = Callable[[Tensor, int, Key], list[Tensor]]


def iid(labels: Tensor, n: int, key: Key) -> list[Tensor]:
    """Evenly, at random: client sizes differ by one at most."""
    _enough(len(labels), n, 1)
    return [part.sort().values for part in key.permutation(len(labels)).tensor_split(n)]


def dirichlet(labels: Tensor, n: int, key: Key, alpha: float = 0.3, least: int = 10) -> list[Tensor]:
    r"""Skewed by class: each class is shared out by its own draw from Dir(alpha).

    For class c that is :math:`q_c \sim \mathrm{Dir}(\alpha 1_n)`.  Small ``alpha`` gives clients of few
    classes and unequal sizes (Hsu et al. 2019, arXiv:1909.06335, in the form by class of Yurochkin et
    al., ICML 2019).  Nobody has fewer than ``least`` samples, whatever is drawn: while somebody has,
    the client with the most gives one of its samples, picked at random, to the one with the fewest.
    (Drawing again until all have enough, as is customary, may never end where ``alpha`` is small and
    clients are many.)
    """
    _positive(alpha, "alpha of a Dirichlet partition")
    _least(least)
    _classes(labels, "a Dirichlet partition")
    _enough(len(labels), n, least)
    rows, owners = [], []
    for c in labels.unique().tolist():
        mine = (labels == c).nonzero().flatten()
        at = key.at("class", c)
        shares = at.at("shares").numpy().dirichlet(np.full(n, alpha))
        rows.append(mine[at.at("order").permutation(len(mine))])
        owners.append(_owners(shares, len(mine)))
    return _levelled(torch.cat(rows), torch.cat(owners), n, least, key.at("least"))


def pathological(labels: Tensor, n: int, key: Key, classes: int = 2) -> list[Tensor]:
    """Each client has ``classes`` classes, and all that have a class have as much of it.

    As many clients as can be have each class: their numbers differ by one at most.  Where clients
    are so few that some class is nobody's, its samples are left out.
    """
    _classes(labels, "a pathological partition")
    held = labels.unique().tolist()
    if not 1 <= classes <= len(held):
        raise ValueError(f"classes, how many each client has, is from 1 to {len(held)}, not {classes}")
    holders: dict[int, list[int]] = {c: [] for c in held}
    for client in range(n):
        luck = key.at("client", client).permutation(len(held)).tolist()
        rank = sorted(range(len(held)), key=lambda i, luck=luck: (len(holders[held[i]]), luck[i]))  # type: ignore[misc]
        for i in rank[:classes]:
            holders[held[i]].append(client)
    given: list[list[Tensor]] = [[] for _ in range(n)]
    for c in (c for c in held if holders[c]):
        mine = (labels == c).nonzero().flatten()
        _enough(len(mine), len(holders[c]), 1, f"class {c}: ")
        mixed = mine[key.at("class", c).permutation(len(mine))]
        for client, part in zip(holders[c], mixed.tensor_split(len(holders[c])), strict=True):
            given[client].append(part)
    return [torch.cat(parts).sort().values for parts in given]


def quantity(labels: Tensor, n: int, key: Key, alpha: float = 0.5, least: int = 10) -> list[Tensor]:
    r"""Skewed by size alone: sizes are a draw from Dir(alpha), samples are dealt at random.

    That is :math:`\mathrm{Dir}(\alpha 1_n)`.  Nobody has fewer than ``least``, by the rule of the Dirichlet partition.
    """
    _positive(alpha, "alpha of a quantity partition")
    _least(least)
    _enough(len(labels), n, least)
    owners = _owners(key.at("shares").numpy().dirichlet(np.full(n, alpha)), len(labels))
    return _levelled(key.at("order").permutation(len(labels)), owners, n, least, key.at("least"))


def tiers(labels: Tensor, n: int, key: Key, sizes: tuple[float, ...] = (16.0, 1.0, 1.0, 1.0, 1.0)) -> list[Tensor]:
    """Skewed by size in steps: clients are spread evenly over ``sizes``, relative to one another.

    By default as in the CIFAR-10 that FLrce published: a fifth of the clients have sixteen times as
    much as the others, whatever its labels.
    """
    if not sizes or not all(math.isfinite(s) and s > 0 for s in sizes):
        raise ValueError(f"sizes of tiers are numbers above 0, not {list(sizes)}")
    _enough(len(labels), n, 1)
    place = key.at("tiers").permutation(n).tolist()
    weight = np.array([sizes[place[i] * len(sizes) // n] for i in range(n)])
    owners = _owners(weight / weight.sum(), len(labels))
    return _levelled(key.at("order").permutation(len(labels)), owners, n, 1, key.at("least"))


# ---- what they share
def _owners(shares: np.ndarray[Any, Any], samples: int) -> Tensor:
    """The owner of each of so many samples in a row, who has its share of them."""
    cuts = (shares.cumsum()[:-1].clip(max=1) * samples + 1e-9).astype(int)
    counts = np.diff(np.concatenate([[0], cuts, [samples]]))
    return torch.from_numpy(np.repeat(np.arange(len(shares)), counts))


def _levelled(rows: Tensor, owners: Tensor, n: int, least: int, key: Key) -> list[Tensor]:
    """Each client's rows, sorted; samples move from who has most to who has fewest, until everybody has ``least``."""
    sizes = torch.bincount(owners, minlength=n).tolist()
    parts = list(rows[owners.argsort(stable=True)].split(sizes))
    lists: dict[int, list[int]] = {}  # of those who give or get

    def held(client: int) -> list[int]:
        if client not in lists:
            lists[client] = parts[client].tolist()
        return lists[client]

    fewest, most = [(s, i) for i, s in enumerate(sizes)], [(-s, i) for i, s in enumerate(sizes)]
    heapify(fewest)
    heapify(most)
    for moved in range(n * least):
        while fewest[0][0] != sizes[fewest[0][1]]:
            heappop(fewest)
        poor = fewest[0][1]
        if sizes[poor] >= least:
            break
        while -most[0][0] != sizes[most[0][1]]:
            heappop(most)
        rich = most[0][1]
        held(poor).append(held(rich).pop(int(key.at(moved).uniform() * sizes[rich])))
        for client, more in ((poor, 1), (rich, -1)):
            sizes[client] += more
            heappush(fewest, (sizes[client], client))
            heappush(most, (-sizes[client], client))
    for client, mine in lists.items():
        parts[client] = torch.tensor(mine, dtype=torch.int64)
    return [part.sort().values for part in parts]


def _classes(labels: Tensor, what: str) -> None:
    if labels.dim() != 1 or labels.is_floating_point():
        raise ValueError(f"{what} goes by class: it needs one whole-numbered label a sample")


def _positive(value: float, what: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{what} is a number above 0, not {value:g}")


def _least(least: int) -> None:
    if least < 1:
        raise ValueError(f"least, the samples that every client has, is at least 1, not {least}")


def _enough(samples: int, n: int, least: int, what: str = "") -> None:
    if n < 1:
        raise ValueError(f"data are shared among at least 1 client, not {n}")
    if samples < n * least:
        ways = [f"at most {samples // least} clients"] * (samples >= least) + [f"a smaller least than {least}"] * (
            least > 1
        )
        advice = f": take {', or '.join(ways)}" if ways and not what else ""
        raise ValueError(f"{what}{samples} samples cannot give {n} clients {least} each{advice}")


PARTITIONS: Mapping[str, Callable[..., list[Any]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "pathological": pathological,
    "shards": shards,
    "quantity": quantity,
    "tiers": tiers,
    "natural": natural,
    "groups": groups,
    "overlapping": overlapping,
}


def parse(text: str) -> Partition:
    """The partition that a text names: ``iid``, ``dirichlet:0.3:5`` (alpha, least), one's own ``my.module:deal``."""
    name, words = parted(text, PARTITIONS)
    if is_own(name):
        rule = found(name, "shares out data")
        return partial(rule, **worded(words, rule, name, f"partition {text!r}", skip=3))
    name, given = named(text, PARTITIONS, "partition", skip=3)
    return partial(PARTITIONS[name], **given)
