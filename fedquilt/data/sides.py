"""Partitions that draw each client's part of the train, val and test side by themselves, so clients may share samples.

Whatever they share, no test sample of anybody is a train sample of anybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..key import Key

Sides = Mapping[str, Tensor]


def shards(sides: Sides, n: int, key: Key, classes: int = 2, samples: int = 100) -> list[dict[str, Tensor]]:
    """FedLPS's: the training side by label, cut into shards of ``samples``; each client draws ``classes`` of them.

    A client has at most so many classes.  Of each class that it has, it is given ``samples`` random
    samples of the test side (or all there are), and in proportion of the validation side; those
    may be others' too.  The paper: MNIST and CIFAR-10 ``2:100``, CIFAR-100 ``10:20``, Tiny-ImageNet ``20:40``.
    """
    train = sides["train"]
    if train.dim() != 1 or train.is_floating_point():
        raise ValueError("shards go by class: they need one whole-numbered label a sample")
    if classes < 1 or samples < 1 or n < 1:
        raise ValueError(f"clients, classes and samples are at least 1, not {n}, {classes} and {samples}")
    cut = train.argsort(stable=True).split(samples)
    whole = [s for s in cut if len(s) == samples]
    if len(whole) < n * classes:
        most = len(whole) // classes
        advice = f"at most {most} clients, or smaller shards" if most else "smaller shards"
        raise ValueError(
            f"{len(train)} samples to train on make {len(whole)} shards of {samples}, too few to give {n} clients "
            f"{classes} each: take {advice}"
        )
    drawn = key.at("shards").permutation(len(whole)).tolist()
    out = []
    for client in range(n):
        mine = torch.cat([whole[s] for s in drawn[client * classes : (client + 1) * classes]]).sort().values
        held = train[mine].unique().tolist()
        parts = {"train": mine}
        for side in ("val", "test"):
            most = samples if side == "test" else max(1, round(samples * len(sides["val"]) / len(train)))
            parts[side] = _some(sides[side], held, most, key.at(side, client))
        out.append(parts)
    return out


def overlapping(sides: Sides, n: int, key: Key, share: float = 2.0) -> list[dict[str, Tensor]]:
    """Mishra and Gupta's: each client draws from each side at random, as if it were alone.

    A client has ``share / n`` of the samples, so each sample is with ``share`` clients on average.
    (How much theirs overlap they do not say.)
    """
    if not (math.isfinite(share) and 0 < share <= n):
        raise ValueError(
            f"share, with how many clients a sample is on average, is above 0 and at most {n}, not {share:g}"
        )
    out = []
    for client in range(n):
        parts = {}
        for side, labels in sides.items():
            most = max(1, int(len(labels) * share / n + 1e-9))
            parts[side] = key.at(side, client).permutation(len(labels))[:most].sort().values
        out.append(parts)
    return out


def _some(labels: Tensor, held: list[int], most: int, key: Key) -> Tensor:
    """So many random samples of each of these classes, or all that there are."""
    parts = []
    for c in held:
        there = (labels == c).nonzero().flatten()
        parts.append(there[key.at("class", c).permutation(len(there))[:most]])
    return torch.cat(parts).sort().values
