"""Who gets which samples.  A partition is a pure function: labels, number of clients and key in, indices out.

Every sample goes to exactly one client, and the index vectors are sorted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..key import Key

Partition = Callable[[Tensor, int, Key], list[Tensor]]


def iid(labels: Tensor, n: int, key: Key) -> list[Tensor]:
    """Evenly, at random: client sizes differ by one at most."""
    _enough(len(labels), n, 1)
    return [part.sort().values for part in key.permutation(len(labels)).tensor_split(n)]


def dirichlet(labels: Tensor, n: int, key: Key, alpha: float = 0.3, least: int = 10) -> list[Tensor]:
    r"""Skewed by class: each class is shared out by its own draw :math:`q_c \sim \mathrm{Dir}(\alpha 1_n)`.

    Small ``alpha`` gives clients of few classes and unequal sizes (Hsu et al. 2019, arXiv:1909.06335,
    in the form by class of Yurochkin et al., ICML 2019).  Nobody has fewer than ``least`` samples,
    whatever is drawn: while somebody has, the client with the most gives one of its samples, picked
    at random, to the one with the fewest.  (Drawing again until all have enough, as is customary,
    may never end where ``alpha`` is small and clients are many.)
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha of a Dirichlet partition is a number above 0, not {alpha:g}")
    if least < 1:
        raise ValueError(f"least, the samples that every client has, is at least 1, not {least}")
    if labels.dim() != 1 or labels.is_floating_point():
        raise ValueError("a Dirichlet partition goes by class: it needs one whole-numbered label a sample")
    _enough(len(labels), n, least)
    given: list[list[int]] = [[] for _ in range(n)]
    for c in labels.unique().tolist():
        mine = (labels == c).nonzero().flatten()
        at = key.at("class", c)
        shares = at.at("shares").numpy().dirichlet(np.full(n, alpha))
        cuts = (shares.cumsum()[:-1].clip(max=1) * len(mine)).astype(int).tolist()
        shuffled = mine[at.at("order").permutation(len(mine))]
        for client, part in enumerate(shuffled.tensor_split(cuts)):
            given[client] += part.tolist()
    _level(given, least, key.at("least"))
    return [torch.tensor(sorted(part), dtype=torch.int64) for part in given]


def _level(given: list[list[int]], least: int, key: Key) -> None:
    """Move samples, one at a time, from who has most to who has fewest, until everybody has ``least``."""
    for moved in range(len(given) * least):
        sizes = [len(part) for part in given]
        poor, rich = sizes.index(min(sizes)), sizes.index(max(sizes))
        if sizes[poor] >= least:
            return
        given[poor].append(given[rich].pop(int(key.at(moved).uniform() * sizes[rich])))


def _enough(samples: int, n: int, least: int) -> None:
    if n < 1:
        raise ValueError(f"data are shared among at least 1 client, not {n}")
    if samples < n * least:
        ways = [f"at most {samples // least} clients"] * (samples >= least) + [f"a smaller least than {least}"] * (
            least > 1
        )
        advice = f": take {', or '.join(ways)}" if ways else ""
        raise ValueError(f"{samples} samples cannot give {n} clients {least} each{advice}")


PARTITIONS: Mapping[str, Callable[..., list[Tensor]]] = {"iid": iid, "dirichlet": dirichlet}


def _settings(rule: Callable[..., list[Tensor]]) -> dict[str, Any]:
    """The settings of a partition with their defaults: all its parameters after labels, n and key."""
    return {p.name: p.default for p in list(inspect.signature(rule).parameters.values())[3:]}


def _usage(name: str) -> str:
    return ":".join([name, *(s.upper() for s in _settings(PARTITIONS[name]))])


def parse(text: str) -> Partition:
    """The partition that a text names: ``iid``, ``dirichlet:0.3``, ``dirichlet:0.3:5`` (alpha, least)."""
    name, *values = text.split(":")
    if name not in PARTITIONS:
        near = get_close_matches(name, PARTITIONS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no partition is called {name!r}; {hint}There are: {', '.join(map(_usage, PARTITIONS))}")
    settings = _settings(PARTITIONS[name])
    if len(values) > len(settings):
        raise ValueError(f"{text!r} has too many settings; it is {_usage(name)}")
    given = {}
    for (setting, default), value in zip(settings.items(), values, strict=False):
        try:
            given[setting] = type(default)(value)
        except ValueError:
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise ValueError(f"{text!r}: {setting} is {kind}, such as {default}, not {value!r}") from None
    return partial(PARTITIONS[name], **given)
