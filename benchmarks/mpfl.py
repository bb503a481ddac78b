"""mpfl: its update, distillation, halting, ratio, variability, sizes and participants: writes docs/methods/mpfl.md.

python benchmarks/mpfl.py              # some hours of one core; goes on where it was interrupted
python benchmarks/mpfl.py --only update distillation --data spar
python benchmarks/mpfl.py --size smoke --seeds 1 --page copy-of-the-page.md
python benchmarks/mpfl.py --size paper
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import pages

from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.run import Run


@dataclass(frozen=True)
class Size:
    """How large a measurement is: clients, local epochs, rounds without windows, and the nets."""

    clients: int
    epochs: int
    rounds: int
    models: Mapping[str, str]
    search: int = 6


EIGHTH = {"spar": "motion_cnn:means=small:scale=0.125", "cifar10": "resnet18:widths=8,16,32,64"}
WHOLE = {"spar": "motion_cnn:means=adequate", "cifar10": "resnet18"}
SIZES = {
    "small": Size(24, 8, 20, EIGHTH),
    "smoke": Size(8, 2, 1, EIGHTH, 1),
    "paper": Size(100, 40, 200, WHOLE, 20),
}
PARTITIONS = {"spar": "natural", "cifar10": "dirichlet:0.5"}
FLEET = "phones128"
mpfl = METHODS["mpfl"]


@dataclass(frozen=True)
class Bench:
    """What all parts need: the flags, the size, and the settings of the runs on one data set."""

    args: Any
    size: Size
    data: str

    def settings(self, **more: Any) -> dict[str, Any]:
        """Those of a run."""
        size = self.size
        rounds = self.args.rounds or size.rounds
        same = {"data": self.data, "model": size.models[self.data], "partition": PARTITIONS[self.data]}
        said = {**same, "clients": size.clients, "fleet": FLEET, "rounds": rounds, "eval_every": max(1, rounds // 5)}
        return said | more

    def rate(self, name: str, build: Callable[..., Method]) -> float:
        """The learning rate of a method: the same search for each."""
        build = partial(build, epochs=self.size.epochs)
        short = self.settings(schedule="sync")
        return pages.searched(build, short, self.args.out, f"mpfl-search-{self.data}-{name}", self.size.search)

    def runs(self, name: str, build: Callable[..., Method], lr: float, **more: Any) -> list[Any]:
        """The same run for each seed."""
        method = build(lr=lr, epochs=self.size.epochs)
        said = self.settings(**{"schedule": "sync", **more})
        return [
            pages.kept(Run(method=method, seed=s, **said), self.args.out, f"mpfl-{self.data}-{name}")
            for s in range(self.args.seeds)
        ]


def total(result: Any, what: str) -> float:
    return float(sum(r[what] for r in result.history.rounds))


def summed(result: Any, metric: str) -> float:
    return float(sum((c["metrics"] or {}).get(metric, 0.0) for c in result.history.clients))


def scores(result: Any, metric: str = "accuracy", tier: str = "") -> float:
    """The mean over the clients (of a type) of what they would use, at the end."""
    last = max(s["round"] for s in result.history.scores)
    mine = [s for s in result.history.scores if s["round"] == last and s["model"] == "served" and s["split"] == "test"]
    return fmean([s[metric] for s in mine if not tier or s["tier"] == tier] or [float("nan")])


def by(results: list[Any], clock: float) -> list[float]:
    """Of each run the accuracy of its last scoring up to a time."""
    found = []
    for x in results:
        when = {0: 0.0, **{r["round"]: r["clock"] for r in x.history.rounds}}
        rounds = [n for n in x.history.scored() if when[n] <= clock * (1 + 1e-9)]
        found.append(pages.accuracy(x, round=max(rounds)))
    return found


HEAD = ["", "test accuracy %", "training, GFLOP", "virtual minutes", "MB, both ways"]


def line(name: str, results: list[Any]) -> list[str]:
    return [
        name,
        pages.spread(pages.accuracy(x) for x in results),
        pages.spread((total(x, "flops") for x in results), 1e-9, 0),
        pages.spread((total(x, "seconds") for x in results), 1 / 60, 2),
        pages.spread((total(x, "down") + total(x, "up") for x in results), 1e-6, 1),
    ]


# ---- the parts of the page
def update(b: Bench) -> str:
    lr, rows, every = b.rate("mpfl", mpfl), [], {}
    rounds = b.settings()["rounds"]
    for name, schedule, delta, n in (
        ("synchronous", "sync", 0.1, rounds),
        ("windows of 0.3", "windows:share=0.3", 0.1, 4 * rounds),
        ("windows of 0.5", "windows:share=0.5", 0.1, 3 * rounds),
        ("windows of 0.5, not compensated", "windows:share=0.5", 0.0, 3 * rounds),
        ("windows of 0.8", "windows:share=0.8", 0.1, 2 * rounds),
    ):
        build = partial(mpfl, delta=delta)
        every[name] = b.runs(f"update-{name}", build, lr, schedule=schedule, rounds=n)
    clock = min(x.history.rounds[-1]["clock"] for found in every.values() for x in found)
    for name, found in every.items():
        rows.append([name, pages.spread(by(found, clock)), *line(name, found)[1:]])
    return pages.table(["", f"accuracy % at {clock / 60:.2f} min", *HEAD[1:]], rows)


def distillation(b: Bench) -> str:
    lr = b.rate("mpfl", mpfl)
    names = {"with": mpfl, "without": partial(mpfl, distil=False)}
    return pages.table(HEAD, [line(n, b.runs(f"distil-{n}", build, lr)) for n, build in names.items()])


def halting(b: Bench) -> str:
    lr, rows = b.rate("mpfl", mpfl), []
    for name, given in (
        ("never", {"h1": 1.0, "h2": 1.0}),
        ("h1 = 1/2, h2 = 5/8 of the epochs", {}),
        ("h1 = h2 = 1/4", {"h1": 0.25, "h2": 0.25}),
        ("Theorem 1, epsilon = 0.1", {"halting": "theorem"}),
        ("Theorem 1, epsilon = 1", {"halting": "theorem", "epsilon": 1.0}),
    ):
        results = b.runs(f"halting-{name}", partial(mpfl, **given), lr)
        helped = [c["metrics"]["halted"] for x in results for c in x.history.clients if c["metrics"].get("class") != 1]
        rows.append([*line(name, results), f"{fmean(helped or [0]):.1f}"])
    return pages.table([*HEAD, "epochs with help"], rows)


def ratio(b: Bench) -> str:
    lr, rows = b.rate("mpfl", mpfl), []
    drift = f"repartition:every={max(1, b.settings()['rounds'] // 3)}"
    for share in (0.25, 0.5, 0.75):
        for name, threshold in (("again", 0.8), ("never", 0.0)):
            build = partial(mpfl, ratio=share, threshold=threshold)
            results = b.runs(f"ratio-{share}-{name}", build, lr, drift=drift)
            anew = pages.spread((summed(x, "anew") for x in results), 1, 0)
            rows.append([*line(f"ratio {share:g}, {name}", results), anew])
    return pages.table([*HEAD, "times found"], rows)


def variability(b: Bench) -> str:
    names = ("mpfl", "hermes", "fedavg", "local")
    builds = {m: METHODS[m] if m in ("mpfl", "local") else partial(METHODS[m], fraction=0.8) for m in names}
    lrs, rows = {m: b.rate(m, builds[m]) for m in names}, []
    rounds = b.settings()["rounds"]
    for i in range(1, 7):
        every = max(1, round(i * 10 * rounds / 200))
        told = []
        for name, lr in lrs.items():
            told.append(b.runs(f"variability-{i}-{name}", builds[name], lr, drift=f"repartition:every={every}"))
        spread = [pages.spread(pages.accuracy(x) for x in found) for found in told]
        rows.append([f"V{i}, every {every} rounds", *spread])
    return pages.table(["", *(f"{m} (lr {lr:g})" for m, lr in lrs.items())], rows)


def sizes(b: Bench) -> str:
    lr, rows = b.rate("mpfl", mpfl), []
    types = [f"T{k}" for k in range(1, 9)]
    for name, model in zip(("small", "adequate", "large"), three(b), strict=True):
        found = b.runs(f"sizes-{name}", mpfl, lr, model=model)
        left = b.runs(f"sizes-{name}-left-out", mpfl, lr, model=model, drift="left-out")
        for what, results, metric in (
            ("accuracy", found, "accuracy"),
            ("macro-F1", found, "macro_f1"),
            ("one left out", left, "accuracy"),
        ):
            each = [pages.spread(scores(x, metric, t) for x in results) for t in types]
            rows.append([f"{name}, {what}", *each, pages.spread(scores(x, metric) for x in results)])
    return pages.table(["", *types, "all"], rows)


def three(b: Bench) -> list[str]:
    """The net of the data small, as it is, and large: of motion by layers as in the paper, of images by width."""
    if b.data == "spar":
        scale = 1.0 if b.args.size == "paper" else 0.125
        return [f"motion_cnn:means={means}:scale={scale:g}" for means in ("small", "adequate", "large")]
    unit = 64 if b.args.size == "paper" else 8
    return [f"resnet18:widths={','.join(str(int(unit * w * 2**i)) for i in range(4))}" for w in (0.5, 1.0, 1.5)]


def participants(b: Bench) -> str:
    """On all phones: of spar there are too few samples for as many clients."""
    lr, rows = b.rate("mpfl", mpfl), []
    clients = 16 if b.args.size == "smoke" else 128
    many = {"clients": clients, "availability": "plugged", "partition": "dirichlet:0.5"}
    for name, chosen in (("by criteria", True), ("drawn", False)):
        build = partial(mpfl, criteria=chosen, fraction=b.size.clients / clients)
        results = b.runs(f"participants-{name}", build, lr, **many)
        answers = pages.spread((float(sum(len(r["merged"]) for r in x.history.rounds)) for x in results), 1, 0)
        rows.append([*line(name, results), answers])
    return pages.table([*HEAD, "replies"], rows)


PARTS: Mapping[str, Callable[[Bench], str]] = {
    f.__name__: f for f in (update, distillation, halting, ratio, variability, sizes, participants)
}


def main() -> None:
    parser = pages.flags(__doc__, "mpfl")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--data", nargs="+", choices=PARTITIONS, default=list(PARTITIONS))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts of the page alone")
    args = parser.parse_args()
    for name in args.only:
        fit = [d for d in args.data if name != "participants" or d != "spar"]
        told = [f"**{d}**\n\n{PARTS[name](Bench(args, SIZES[args.size], d))}" for d in fit]
        pages.written(args.page, name, "\n\n".join(told))


if __name__ == "__main__":
    main()
