"""Which entries of a net's tensors belong together: classes of labels, joined as a trace finds reasons to.

Every entry along every axis of every tensor has a label.  A class of labels is a unit: what must be
kept or left together.  Class 0 is what nobody may move: the net's inputs, outputs, and what meets them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FIXED = 0


@dataclass(frozen=True)
class Where:
    """An operation of the net: in which layer, and in which line of whose source, where there is one."""

    op: str
    layer: str = ""
    kind: str = ""
    file: str = ""
    line: int = 0
    text: str = ""

    def __str__(self) -> str:
        layer = f"{self.layer} ({self.kind})" if self.layer else self.kind or "the net"
        return f"{layer}, {self.file} line {self.line}, `{self.text}`" if self.file else layer


@dataclass(frozen=True)
class Reason:
    """Why labels were fixed or joined; one that is ``plain`` is in the nature of nets and surprises nobody."""

    said: str
    where: Where
    plain: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.said}" if self.where.op else self.said


def thin(t: Tensor, *others: Tensor) -> Tensor:
    """The tensor without the copies along axes that it, and each of the others, is expanded along."""
    for d in range(t.dim()):
        if t.shape[d] > 1 and all(v.stride(d) == 0 for v in (t, *others)):
            t = t.narrow(d, 0, 1)
    return t


class Classes:
    """Labels, and which of them are one unit."""

    def __init__(self) -> None:
        self.flat = torch.zeros(1, dtype=torch.int64)
        self.reasons: list[Reason] = []
        self.fixed_by = np.full(1, -1)  # for each label the reason that fixed it
        self.merged_by = np.full(1, -1)  # and the first that made fewer units of those on one axis

    def fresh(self, *shape: int) -> Tensor:
        """So many new labels, each a class of its own."""
        n = len(self.flat)
        new = torch.arange(n, n + math.prod(shape))
        self.flat = torch.cat([self.flat, new])
        more = np.full(len(new), -1)
        self.fixed_by, self.merged_by = np.append(self.fixed_by, more), np.append(self.merged_by, more)
        return new.view(shape)

    def of(self, labels: Tensor) -> Tensor:
        """The class of each label."""
        return self.flat[thin(labels)].expand(labels.shape)

    def unite(self, a: Tensor, b: Tensor, why: Reason) -> None:
        """Make these labels, pair by pair, one class each; where one of a pair is fixed, the other is then, too."""
        a, b = torch.broadcast_tensors(self.of(a), self.of(b))
        self.fix(torch.cat([a[b == FIXED], b[a == FIXED]]), why)
        differ = (a != b) & (a != FIXED) & (b != FIXED)
        if differ.any():
            before = (a.unique().numel(), b.unique().numel())
            pairs = torch.stack([a[differ], b[differ]], 1).unique(dim=0)
            self._join(pairs.tolist())
            after = (self.of(a).unique().numel(), self.of(b).unique().numel())
            for side, n, m in zip((a, b), before, after, strict=True):
                if m < n:
                    self._note(self.merged_by, self.of(side), why)

    def fix(self, labels: Tensor, why: Reason) -> None:
        """Nobody may move these any more."""
        found = self.of(labels).unique()
        found = found[found != FIXED]
        if len(found):
            self._note(self.fixed_by, found, why)
            self._join([(FIXED, int(c)) for c in found])

    def told(self, labels: Tensor, fixed: bool) -> list[Reason]:
        """What is worth saying of why these were fixed; or else, or if they are not, of why they are one."""
        for by in [self.fixed_by, self.merged_by] if fixed else [self.merged_by]:
            found = [self.reasons[i] for i in sorted({int(i) for i in by[labels.numpy()] if i >= 0})]
            if found := [why for why in found if not why.plain]:
                return found
        return []

    def _join(self, pairs: Iterable[tuple[int, int]]) -> None:
        parent: dict[int, int] = {}

        def root(x: int) -> int:
            while (up := parent.get(x, x)) != x:
                parent[x] = parent.get(up, up)
                x = up
            return x

        for a, b in pairs:
            low, high = sorted((root(a), root(b)))
            if low != high:
                parent[high] = low
        moved = torch.arange(len(self.flat))
        for x in parent:
            moved[x] = root(x)
        self.flat = moved[self.flat]

    def _note(self, by: np.ndarray, classes: Tensor, why: Reason) -> None:
        if not self.reasons or self.reasons[-1] is not why:
            self.reasons.append(why)
        mine = torch.isin(self.flat, classes.unique()).numpy()
        said = np.array([not r.plain for r in self.reasons] + [False])  # the last is for -1: nothing was said
        by[mine & ~said[by]] = len(self.reasons) - 1
