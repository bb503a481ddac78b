"""Where data come from: a name, and tensors that stay in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from ..task import Classification, Task


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples ``x`` of shape ``shape`` with targets ``y``, and the task that they set.

    ``classes`` is how many values a whole-numbered target may have (labels or tokens); targets of a
    floating type are free of it.
    """

    name: str
    x: Tensor
    y: Tensor
    task: Task
    shape: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{self.name}: {len(self.x)} samples with {len(self.y)} targets")
        if tuple(self.x.shape[1:]) != self.shape:
            raise ValueError(f"{self.name}: samples of shape {tuple(self.x.shape[1:])}, declared as {self.shape}")

    def __len__(self) -> int:
        return len(self.x)


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 grey values in [0, 1], which come with scikit-learn."""
    from sklearn.datasets import load_digits  # here, because it takes a second to import

    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32).div(16).unsqueeze(1)
    y = torch.tensor(found.target, dtype=torch.int64)
    return Dataset("digits", x, y, Classification(10), (1, 8, 8), 10)


SOURCES: dict[str, Callable[[], Dataset]] = {"digits": digits}


def load(name: str) -> Dataset:
    """The data set of this name."""
    if name not in SOURCES:
        near = get_close_matches(name, SOURCES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no data set is called {name!r}; {hint}There are: {', '.join(SOURCES)}")
    return SOURCES[name]()
