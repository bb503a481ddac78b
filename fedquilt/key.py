"""Stateless randomness: a key is a seed and a path; equal paths give equal streams, in any order and process.

Nothing else in the program makes randomness.  A key is used up by nothing: there is no generator
state to save, so a resumed run, another engine and another machine draw the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Key:
    """``Key(0).at("round", 3, "client", 7)``: what is drawn there depends on nothing else."""

    seed: int
    path: tuple[str, ...] = ()

    def at(self, *steps: object) -> Key:
        """The key of a place further down the path (a number and its text are the same step)."""
        return Key(self.seed, self.path + tuple(map(str, steps)))

    def number(self) -> int:
        """A 63-bit number, the seed of the generators."""
        h = blake2b(digest_size=8)
        for step in (str(self.seed), *self.path):
            raw = step.encode()
            h.update(len(raw).to_bytes(4, "little") + raw)
        return int.from_bytes(h.digest(), "little") >> 1

    def torch(self) -> torch.Generator:
        """A fresh torch generator on the CPU."""
        return torch.Generator().manual_seed(self.number())

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator (Philox: counter-based, the same on every platform)."""
        return np.random.Generator(np.random.Philox(self.number()))

    def permutation(self, n: int) -> Tensor:
        """The numbers below ``n`` in random order."""
        return torch.randperm(n, generator=self.torch())

    def uniform(self) -> float:
        """One number in [0, 1)."""
        return float(torch.rand((), dtype=torch.float64, generator=self.torch()))
