"""Paired statistics over clients and seeds: the same client of the same seed under two methods.

Clients are drawn again within each seed, so an interval speaks of other clients, under these seeds;
``by_seed`` beside it says how much the seeds differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .key import Key

Who = tuple[int, int]  # seed and client
Values = Mapping[Who, float]
Floats = NDArray[np.float64]

DRAWS = 2000
LEVEL = 0.95
CHUNK = 1 << 21  # numbers drawn at a time


def mean(x: Floats) -> Floats:
    """The mean of each row."""
    out: Floats = x.mean(axis=-1)
    return out


def by_seed(values: Values) -> dict[int, Floats]:
    """The values of each seed, in the order of clients."""
    seeds = sorted({seed for seed, _ in values})
    return {seed: np.array([values[who] for who in sorted(values) if who[0] == seed]) for seed in seeds}


def interval(values: Values, key: Key, statistic: Callable[[Floats], Floats] = mean) -> tuple[float, float]:
    """The percentile bootstrap interval of a statistic of the clients, averaged over seeds."""
    groups = by_seed(values)
    drawn = np.zeros(DRAWS)
    for seed, x in groups.items():
        g = key.at("bootstrap", seed).numpy()
        rows = max(1, CHUNK // len(x))
        for a in range(0, DRAWS, rows):
            b = min(DRAWS, a + rows)
            drawn[a:b] += statistic(x[g.integers(len(x), size=(b - a, len(x)))]) / len(groups)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def paired(a: Values, b: Values, key: Key, lower_is_better: bool = False) -> dict[str, Any]:
    """How ``a`` compares with ``b``: the difference a - b of the clients of both, with interval, test and shares."""
    differences = {who: a[who] - b[who] for who in sorted(a.keys() & b.keys())}
    d = np.array(list(differences.values()))
    gain = -d if lower_is_better else d
    each = [float(x.mean()) for x in by_seed(differences).values()]
    low, high = interval(differences, key)
    return {
        "pairs": len(d),
        "difference": float(np.mean(each)),
        "interval": [low, high],
        "level": LEVEL,
        "p": signed_rank(d),
        "better": float((gain > 0).mean()),
        "equal": float((gain == 0).mean()),
        "worse": float((gain < 0).mean()),
        "by_seed": each,
    }


def signed_rank(d: Floats) -> float:
    """The p-value of Wilcoxon's signed rank test, two-sided; pairs without a difference are left out."""
    from scipy.stats import wilcoxon  # a second to import

    moved = d[d != 0]
    return float(wilcoxon(moved).pvalue) if len(moved) else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """P-values of several tests together (Holm 1979): any one below 0.05 is, whatever the others."""
    out = [1.0] * len(ps)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (len(ps) - rank) * ps[i]))
        out[i] = running
    return out


def worst_decile(x: Floats, lower_is_better: bool = False) -> float:
    """The mean over the worst tenth (rounded up)."""
    ordered = np.sort(x)[::-1] if lower_is_better else np.sort(x)
    return float(ordered[: -(-len(x) // 10)].mean())
