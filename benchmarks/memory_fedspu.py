"""FedSPU's memory claim (AAAI 2025: on average 54, 44, 31, 18 % less at p = .2, .4, .6, .8) on its three nets.

    python benchmarks/memory_fedspu.py

Each figure is the share of the bytes of full training that a step with a share p of active neurons
does not need; see docs/costs.md for the three ways to count.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedquilt.cover import count_units
from fedquilt.key import Key
from fedquilt.meter import peak_bytes
from fedquilt.models import build
from fedquilt.task import Classification

NETS = [  # net, input, classes, the paper's batch
    ("emnist_cnn", (1, 28, 28), 62, 16),
    ("cifar_cnn", (3, 32, 32), 10, 128),
    ("speech_cnn", (1, 32, 32), 35, 16),
]
RATIOS = (0.2, 0.4, 0.6, 0.8)
WAYS = ("executed", "exact", "cut")


def reductions(way: str, batch: int | None) -> Iterator[tuple[str, list[float]]]:
    """For each net, how much less than full training, at each ratio (``batch`` None: the paper's)."""
    for name, input, classes, own in NETS:
        model = build({"name": name}, Key(0))
        n = batch or own
        x, y = torch.randn(n, *input), torch.zeros(n, dtype=torch.long)
        ask = (model, model.params(), Classification(classes), x, y)
        full = peak_bytes(*ask).total
        out = []
        for p in RATIOS:
            key = Key(0).at(p)
            units = {g: key.at(g).permutation(k)[: count_units(p, k)] for g, k in model.groups.items()}
            out.append(1 - peak_bytes(*ask, free=model.cover(units), freezing=way).total / full)
        yield name, out


def mean(way: str, batch: int | None) -> list[float]:
    """Over the three nets."""
    rows = [r for _, r in reductions(way, batch)]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def main() -> None:
    torch.set_num_threads(1)
    print("| counted | batch | net | " + " | ".join(f"p = {p}" for p in RATIOS) + " |")
    print("| --- | --- | --- |" + " ---: |" * len(RATIOS))
    print("| FedSPU's claim | | mean | 54 % | 44 % | 31 % | 18 % |")
    for way in WAYS:
        for batch in (None, 1):
            rows = [*reductions(way, batch), ("mean", mean(way, batch))]
            for name, row in rows:
                said = " | ".join(f"{100 * v:.0f} %" for v in row)
                print(f"| {way} | {batch or 'paper'} | {name} | {said} |")


if __name__ == "__main__":
    main()
