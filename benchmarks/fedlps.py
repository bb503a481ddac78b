"""FedLPS: which pattern, which ratio, and how it fares beside others: writes docs/methods/fedlps.md.

python benchmarks/fedlps.py            # about an hour of one core; goes on where it was interrupted
python benchmarks/fedlps.py --only beside --data femnist
python benchmarks/fedlps.py --rounds 3 --seeds 1 --page copy-of-the-page.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pages

from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.run import Run

FLEET = "levels:high"
DATA: dict[str, dict[str, Any]] = {
    "femnist": {"clients": 40, "rounds": 30},
    "cifar10": {"clients": 40, "rounds": 20, "partition": "shards:2:100"},
}
EPOCHS = {"femnist": 3, "cifar10": 5}  # 22 and 35 steps a round on average
ABLATION = 20  # rounds
SHARES = (0.2, 0.4, 0.6, 0.8)
PATTERNS = ("learned", "random", "ordered", "magnitude")
RATIOS = ("pucbv", "capability", "fixed")
FRACTION = 0.2
SEARCH = 6  # rounds

Runs = dict[str, list[Any]]
fedlps = METHODS["fedlps"]
BESIDE: Mapping[str, Callable[..., Method]] = {
    "fedlps": fedlps,
    "fedlps, mu = 0": partial(fedlps, mu=0.0),
    "fedavg": METHODS["fedavg"],
    "fedavg, fine-tuned": partial(METHODS["fedavg"], finetune=1),
    "heterofl": METHODS["heterofl"],
    "hermes": METHODS["hermes"],
    "local": METHODS["local"],
}


class Bench:
    """The flags and the settings of the runs on one data set."""

    def __init__(self, args: Any, data: str) -> None:
        self.args, self.data = args, data
        rounds = args.rounds or DATA[data]["rounds"]
        self.settings = {"data": data, "fleet": FLEET, "eval_every": 2, **DATA[data], "rounds": rounds}
        self.fewer = {"rounds": args.rounds or ABLATION}

    def rate(self, name: str, build: Callable[..., Method]) -> float:
        """The learning rate of a method: the same search for each."""
        build = partial(build, fraction=FRACTION, epochs=EPOCHS[self.data])
        short = {**self.settings, "eval_every": 0}
        label = f"search-{self.data}-{name}"
        return pages.searched(build, short, self.args.out, label, min(SEARCH, self.settings["rounds"]))

    def runs(self, name: str, build: Callable[..., Method], lr: float, **more: Any) -> list[Any]:
        """The same run for each seed."""
        method = build(lr=lr, fraction=FRACTION, epochs=EPOCHS[self.data])
        settings = {**self.settings, **more}
        label = f"{self.data}-{name}"
        return [
            pages.kept(Run(method=method, seed=s, **settings), self.args.out, label) for s in range(self.args.seeds)
        ]


HEAD = ["", "test accuracy %", "training, TFLOP", "virtual seconds", "MB, both ways"]


def totals(runs: Mapping[str, Sequence[Any]]) -> str:
    """What the whole runs came to, and cost."""
    rows = []
    for name, found in runs.items():
        cost = [x.history.costs(x.rounds) for x in found]
        rows.append(
            [
                name,
                pages.spread(last(found), 100.0),
                pages.spread((c["flops"] for c in cost), 1e-12, 3),
                pages.spread((c["seconds"] for c in cost), 1.0, 2),
                pages.spread((c["down"] + c["up"] for c in cost), 1e-6, 0),
            ]
        )
    return pages.table(HEAD, rows)


def last(found: Sequence[Any]) -> list[float]:
    """The accuracy of each run after its last round."""
    return [pages.accuracy(x) for x in found]


# ---- the parts of the page
def beside(b: Bench) -> str:
    lrs = {name: b.rate(slug(name), build) for name, build in BESIDE.items()}
    runs = {name: b.runs(slug(name), build, lrs[name]) for name, build in BESIDE.items()}
    named = {f"{name} (lr {lrs[name]:g})": found for name, found in runs.items()}
    said = [pages.told("After the same rounds fedlps", last(runs["fedlps"]), m, last(runs[m])) for m in list(runs)[1:]]
    for cost, what in (("flops", "operations"), ("seconds", "virtual seconds")):
        for other in list(runs)[2:]:
            mine, theirs = evenly(runs["fedlps"], runs[other], cost)
            said.append(pages.told(f"For as many {what} fedlps", mine, other, theirs))
    return "\n\n".join(
        (
            totals(named),
            "Against operations:",
            pages.curves(runs, "flops", 1e-12, "TFLOP"),
            "Against virtual time:",
            pages.curves(runs, "seconds", 1.0, "s"),
            pages.verdicts(said),
        )
    )


def evenly(a: Sequence[Any], b: Sequence[Any], cost: str) -> tuple[list[float], list[float]]:
    """Of each seed both accuracies when both had spent what the cheaper run of the two has spent in all."""
    least = [min(pages.spent(x, cost), pages.spent(y, cost)) for x, y in zip(a, b, strict=True)]
    mine, theirs = ([pages.reached(x, cost, n)[0] for x, n in zip(found, least, strict=True)] for found in (a, b))
    return mine, theirs


def slug(name: str) -> str:
    """A method's name fit for a folder."""
    return name.replace(", ", "-").replace(" = ", "")


def pattern(b: Bench) -> str:
    lr, runs = b.rate("fedlps", fedlps), Runs()
    for share in SHARES:
        for kind in PATTERNS:
            build = partial(fedlps, pattern=kind, ratio="fixed", share=share)
            even = {"fleet": "tiers:1", "eval_every": 0, **b.fewer}  # so that the ratio is the same for all
            runs[f"{kind}, s = {share:g}"] = b.runs(f"pattern-{kind}-{share}", build, lr, **even)
    said = []
    for share in SHARES:
        for kind in PATTERNS[1:]:
            mine, theirs = (last(runs[f"{k}, s = {share:g}"]) for k in ("learned", kind))
            said.append(pages.told(f"At s = {share:g} the learned pattern", mine, f"the {kind} one", theirs))
    return "\n\n".join((f"Learning rate {lr:g}.", totals(runs), pages.verdicts(said)))


def ratio(b: Bench) -> str:
    lr, runs, said = b.rate("fedlps", fedlps), Runs(), []
    for dynamic in (False, True):
        when = "redrawn each round" if dynamic else "fixed capability"
        for kind in RATIOS:
            more = {"fleet": FLEET + (":dynamic=true" if dynamic else ""), **b.fewer}
            name = f"ratio-{kind}-{'dyn' if dynamic else 'fix'}"
            runs[f"{kind}, {when}"] = b.runs(name, partial(fedlps, ratio=kind), lr, **more)
        for kind in RATIOS[1:]:
            mine, theirs = runs[f"pucbv, {when}"], runs[f"{kind}, {when}"]
            said.append(pages.told(f"With {when} pucbv", last(mine), kind, last(theirs)))
            for cost, what in (("flops", "operations"), ("seconds", "virtual seconds")):
                even = evenly(mine, theirs, cost)
                said.append(pages.told(f"With {when}, for as many {what}, pucbv", even[0], kind, even[1]))
    return "\n\n".join((f"Learning rate {lr:g}.", totals(runs), pages.verdicts(said)))


PARTS: Mapping[str, Callable[[Bench], str]] = {f.__name__: f for f in (beside, pattern, ratio)}


def main(words: Sequence[str] | None = None) -> None:
    parser = pages.flags(__doc__, "fedlps")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts of the page alone")
    args = parser.parse_args(words)
    for part in args.only:
        for data in args.data:
            pages.written(args.page, f"{part} {data}", PARTS[part](Bench(args, data)))


if __name__ == "__main__":
    main()
