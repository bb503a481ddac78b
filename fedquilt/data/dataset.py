"""A data set: samples and targets in memory, once, and all that is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import torch
from torch import Tensor

from ..task import Task
from .ready import AS_IS, Prepare

DEFAULT = "dirichlet:0.3"  # how data are shared out, where neither the run nor the data say it


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples ``x`` of shape ``shape`` with targets ``y``, and the task that they set.

    ``classes`` is how many values a whole-numbered target may have (labels or tokens); targets of a
    floating type are free of it.  ``x`` is as compact as it came (uint8, say); ``prepare`` makes of
    a batch what a net takes.

    ``groups`` says to whom each sample belongs by nature (a writer, a person), by place in
    ``owners``.  ``series``: samples with the same number are one series, in order of time, so a
    client's split is by time; with ``gap`` neighbours share raw values: a series is dealt whole,
    and as many samples are left out at each of its cuts.  The last ``own_test`` rows are the data's
    own test part: only partitions that draw both sides deal them.  ``model`` and ``partition`` are
    what suits the data.  ``files`` are the files that the rows come from, with their numbers of rows.
    """

    name: str
    x: Tensor
    y: Tensor
    task: Task
    shape: tuple[int, ...]
    classes: int
    prepare: Prepare = AS_IS
    groups: Tensor | None = None
    owners: tuple[str, ...] = ()
    series: Tensor | None = None
    gap: int = 0
    own_test: int = 0
    model: str = ""
    partition: str = DEFAULT
    files: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{self.name}: {len(self.x)} samples with {len(self.y)} targets")
        if tuple(self.x.shape[1:]) != self.shape:
            raise ValueError(f"{self.name}: samples of shape {tuple(self.x.shape[1:])}, declared as {self.shape}")
        for what, each in (("groups", self.groups), ("series", self.series)):
            if each is not None and len(each) != len(self.x):
                raise ValueError(f"{self.name}: {len(self.x)} samples with {len(each)} {what}")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dealt(self) -> int:
        """How many rows are shared out by a partition that does not draw the test part by itself."""
        return len(self) - self.own_test

    def place(self, row: int) -> str:
        """Where a row comes from: ``row 3 (row 1 of b.csv)``, or ``row 3`` where that is not known."""
        within = row
        for file, rows in self.files.items():
            if within < rows:
                return f"row {row} (row {within} of {file})"
            within -= rows
        return f"row {row}"

    @cached_property
    def fingerprint(self) -> str:
        """A short name for these numbers, equal in every process."""
        return digest({"x": self.x, "y": self.y})

    @cached_property
    def contents(self) -> Tensor:
        """A 64-bit number for each sample; equal samples have equal numbers, others almost surely not."""
        return hashed(self.x)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A short name for tensors: their names, types, shapes and bytes, whatever their layout in memory."""
    h = blake2b(digest_size=16)
    for name, t in tensors.items():
        h.update(f"{name} {t.dtype} {tuple(t.shape)}\n".encode())
        h.update(t.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return h.hexdigest()


def hashed(x: Tensor) -> Tensor:
    """A 64-bit number for each row: its bytes as words, each word mixed with its place, added up."""
    raw = x.detach().reshape(len(x), -1).contiguous()
    raw = raw.view(torch.uint8) if raw.numel() else torch.zeros(len(x), 0, dtype=torch.uint8)
    odd = -raw.shape[1] % 8
    if odd:
        raw = torch.cat([raw, raw.new_zeros(len(raw), odd)], 1)
    words = raw.view(torch.int64)
    place = _mixed(torch.arange(1, words.shape[1] + 1) * -7046029254386353131)
    parts = [_mixed(w ^ place).sum(1) for w in words.split(4096)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def _mixed(z: Tensor) -> Tensor:
    """The finaliser of splitmix64 (with signed shifts), which spreads every bit over all others."""
    z = (z ^ (z >> 30)) * -4658895280553007687
    z = (z ^ (z >> 27)) * -7723592293110705685
    return z ^ (z >> 31)
