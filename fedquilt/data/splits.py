"""A client's samples, cut in a train, a validation and a test part."""

from __future__ import annotations

import torch
from torch import Tensor

from ..key import Key
from .index import SPLITS

Shares = tuple[float, float, float]


def parse(text: str) -> Shares:
    """The shares that a text says in per cent: ``60/10/30``; in ``70/0/30`` the test part doubles as validation."""
    try:
        train, val, test = (float(s) / 100 for s in text.split("/"))
    except ValueError:
        raise ValueError(f"a split is train/val/test in per cent, such as 60/10/30, not {text!r}") from None
    checked((train, val, test))
    return train, val, test


def checked(shares: Shares) -> None:
    """Refuse shares that are none."""
    train, val, test = shares
    if not (train > 0 and val >= 0 and test > 0 and abs(train + val + test - 1) < 1e-6):
        told = "/".join(f"{100 * s:g}" for s in shares)
        raise ValueError(f"a split has a train and a test part and adds up to 100 per cent; {told} does not")


def split(indices: Tensor, key: Key, shares: Shares = (0.6, 0.1, 0.3)) -> dict[str, Tensor]:
    """A client's samples, dealt at random into parts that do not overlap.

    Validation and test have their share, rounded to the nearest number (halves up) but at least one
    sample, and train has the rest: three samples or more leave no part empty.  With fewer, train
    comes first, then test.  If validation has no share, it *is* the test part, and a figure that was
    picked on it must say so.
    """
    checked(shares)
    mixed = indices[key.permutation(len(indices))]
    parts = [part.sort().values for part in mixed.split(_sizes(len(indices), shares))]
    return dict(zip(SPLITS, parts if shares[1] else (parts[0], parts[2], parts[2]), strict=True))


def split_in_time(indices: Tensor, series: Tensor, gap: int = 0, shares: Shares = (0.6, 0.1, 0.3)) -> dict[str, Tensor]:
    """A client's samples, the earliest of each series for training and the latest for testing.

    Sizes are those of :func:`split`, series by series; ``gap`` samples are left out at each cut, so
    that no two parts share a raw value.  A series too short for its cuts is trained on.
    """
    checked(shares)
    parts: dict[str, list[Tensor]] = {s: [] for s in SPLITS}
    for one in series[indices].unique().tolist():
        rows = indices[series[indices] == one].sort().values
        n = len(rows) - gap * (2 if shares[1] else 1)
        if n < 2 + (shares[1] > 0):
            parts["train"].append(rows)
            continue
        train, val, test = _sizes(n, shares)
        at = train + gap
        parts["train"].append(rows[:train])
        parts["val"].append(rows[at : at + val] if val else rows[len(rows) - test :])
        parts["test"].append(rows[len(rows) - test :])
    return {s: torch.cat(p).sort().values if p else indices[:0] for s, p in parts.items()}


def _sizes(n: int, shares: Shares) -> list[int]:
    """How many of ``n`` samples each part has."""
    kept = 1 + (shares[1] > 0 and n > 2)  # samples that are not the test part's, whatever its share
    test = min(_rounded(n, shares[2]), max(0, n - kept))
    val = min(_rounded(n, shares[1]), max(0, n - 1 - test)) if shares[1] else 0
    return [n - val - test, val, test]


def _rounded(n: int, share: float) -> int:
    return max(1, int(n * share + 0.5 + 1e-9))
