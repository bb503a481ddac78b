"""Partitions by whom the samples belong to: writers, speakers, persons, roles."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..key import Key


def natural(groups: Tensor, n: int, key: Key, least: int = 10) -> list[Tensor]:
    """Each client is one natural owner of samples: ``n`` of those who have ``least`` or more, at random.

    There are at most as many clients as owners; the samples of the others are left out.
    """
    if n < 1:
        raise ValueError(f"data are shared among at least 1 client, not {n}")
    if least < 1:
        raise ValueError(f"least, the samples that every client has, is at least 1, not {least}")
    sizes = torch.bincount(groups)
    fit = (sizes >= least).nonzero().flatten()
    if len(fit) < n:
        owners = int((sizes > 0).sum())
        ways = [f"at most {len(fit)} clients"] * bool(len(fit)) + [f"a smaller least than {least}"] * (
            least > 1 and n <= owners
        )
        ways += ["the partition 'groups'"] * (n <= owners) + ["the partition 'iid'"]
        there = f"{len(fit)} of {owners} natural owners have {least} samples or more, too few for {n} clients"
        raise ValueError(f"{there}: take {', or '.join(ways)}")
    chosen = fit[key.at("owners").permutation(len(fit))[:n]]
    rows = groups.argsort(stable=True).split(sizes.tolist())
    return [rows[i] for i in chosen.sort().values.tolist()]


def groups(groups: Tensor, n: int, key: Key, alpha: float = 0.5, least: int = 10) -> list[Tensor]:
    r"""Natural owners in groups, each whole with one client, whose sizes go by a draw from Dir(alpha).

    That is :math:`\mathrm{Dir}(\alpha 1_n)`: FLrce's clients are groups of writers or speakers.  An
    owner, the one with the most samples first, goes to the client that lacks most of its share; then
    who has fewer than ``least`` gets the smallest that is enough of who has most, and gives nothing
    back.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha of a partition by groups is a number above 0, not {alpha:g}")
    sizes = torch.bincount(groups)
    owners = [i for i in sizes.argsort(descending=True, stable=True).tolist() if sizes[i]]
    if not 1 <= n <= len(owners):
        raise ValueError(f"{len(owners)} natural owners cannot be {n} groups: take from 1 to {len(owners)} clients")
    if least < 1 or int(sizes.sum()) < n * least:
        raise ValueError(f"{int(sizes.sum())} samples cannot give {n} clients {least} each: take another least")
    lacks = key.at("shares").numpy().dirichlet(np.full(n, alpha)) * float(sizes.sum())
    given: list[list[int]] = [[] for _ in range(n)]
    for owner in owners:
        client = int(lacks.argmax())
        given[client].append(owner)
        lacks[client] -= int(sizes[owner])
    _enough(given, sizes.tolist(), least)
    rows = groups.argsort(stable=True).split(sizes.tolist())
    return [torch.cat([rows[owner] for owner in mine]).sort().values for mine in given]


def _enough(given: list[list[int]], sizes: list[int], least: int) -> None:
    """Move whole owners until every client has enough."""
    has = [sum(sizes[o] for o in mine) for mine in given]
    for _ in range(sum(map(len, given))):
        poor = has.index(min(has))
        if has[poor] >= least:
            return
        rich = max((i for i in range(len(given)) if len(given[i]) > 1), key=lambda i: (has[i], -i), default=poor)
        spare = [o for o in given[rich] if has[rich] - sizes[o] >= least]
        if rich == poor or not spare:
            break
        enough = [o for o in spare if has[poor] + sizes[o] >= least]
        moved = min(enough, key=lambda o: (sizes[o], o)) if enough else max(spare, key=lambda o: (sizes[o], -o))
        given[rich].remove(moved)
        given[poor].append(moved)
        has[rich] -= sizes[moved]
        has[poor] += sizes[moved]
    if min(has) < least:
        raise ValueError(f"natural owners cannot be grouped so that each of {len(given)} clients has {least} samples")
