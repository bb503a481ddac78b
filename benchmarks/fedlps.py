"""FedLPS: which pattern, which ratio, and how it fares beside others: writes docs/methods/fedlps.md.

python benchmarks/fedlps.py            # about an hour of one core; goes on where it was interrupted
python benchmarks/fedlps.py --rounds 3 --seeds 1 --page copy-of-the-page.md
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pages

from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.run import Run

FLEET = "levels:high"
DATA: dict[str, dict[str, Any]] = {
    "femnist": {"data": "femnist", "clients": 40, "rounds": 30, "fleet": FLEET},
    "cifar10": {"data": "cifar10", "clients": 40, "rounds": 20, "fleet": FLEET, "partition": "pathological:2"},
}
SHARES = (0.2, 0.4, 0.6, 0.8)
FRACTION = 0.2


def main() -> None:
    args = pages.flags(__doc__, "fedlps").parse_args()
    settings = {d: {**s, "rounds": args.rounds or s["rounds"], "eval_every": 10} for d, s in DATA.items()}
    for data in DATA:
        pages.written(args.page, data, beside(args, data, settings[data]))
    pages.written(args.page, "pattern", patterns(args, settings["femnist"]))
    pages.written(args.page, "ratio", ratios(args, settings["femnist"]))


def several(args: Any, settings: dict[str, Any], name: str, build: Callable[..., Method], lr: float) -> list[Any]:
    """The same run for each seed."""
    return [
        pages.kept(Run(method=build(lr=lr, fraction=FRACTION), seed=s, **settings), args.out, name)
        for s in range(args.seeds)
    ]


def line(name: str, results: list[Any]) -> list[str]:
    total = [{k: sum(r[k] for r in x.history.rounds) for k in ("flops", "seconds", "down", "up")} for x in results]
    return [
        name,
        pages.spread(pages.accuracy(x) for x in results),
        pages.spread((t["flops"] for t in total), 1e-12, 2),
        pages.spread((t["seconds"] for t in total), 1 / 3600, 2),
        pages.spread((t["down"] + t["up"] for t in total), 1e-6, 0),
    ]


HEAD = ["", "test accuracy %", "training, TFLOP", "virtual hours", "MB, both ways"]


def beside(args: Any, data: str, settings: dict[str, Any]) -> str:
    rows = []
    tuned = partial(METHODS["fedavg"], finetune=1)
    for name, build in (
        ("fedlps", METHODS["fedlps"]),
        ("fedlps, mu = 0", partial(METHODS["fedlps"], mu=0.0)),
        ("fedavg", METHODS["fedavg"]),
        ("fedavg, fine-tuned", tuned),
        ("heterofl", METHODS["heterofl"]),
        ("fedspu", METHODS["fedspu"]),
        ("hermes", METHODS["hermes"]),
        ("local", METHODS["local"]),
    ):
        label = f"{data}-{name.replace(', ', '-').replace(' = ', '')}"
        lr = pages.searched(partial(build, fraction=FRACTION), settings, args.out, f"search-{label}", 8)
        rows.append(line(f"{name} (lr {lr:g})", several(args, settings, label, build, lr)))
    return pages.table(HEAD, rows)


def patterns(args: Any, settings: dict[str, Any]) -> str:
    rows = []
    for pattern in ("learned", "random", "ordered", "magnitude"):
        for share in SHARES:
            build = partial(METHODS["fedlps"], pattern=pattern, ratio="fixed", share=share)
            even = {**settings, "fleet": "tiers:1"}  # so that the ratio is the same for all
            rows.append(
                line(f"{pattern}, s = {share:g}", several(args, even, f"pattern-{pattern}-{share}", build, 0.05))
            )
    return pages.table(HEAD, rows)


def ratios(args: Any, settings: dict[str, Any]) -> str:
    rows = []
    for dynamic in (False, True):
        for ratio in ("pucbv", "capability", "fixed"):
            fleet = {**settings, "fleet": FLEET + (":dynamic=true" if dynamic else "")}
            label = f"{ratio}, {'redrawn each round' if dynamic else 'fixed capability'}"
            build = partial(METHODS["fedlps"], ratio=ratio)
            rows.append(line(label, several(args, fleet, f"ratio-{ratio}-{'dyn' if dynamic else 'fix'}", build, 0.05)))
    return pages.table(HEAD, rows)


if __name__ == "__main__":
    main()
