"""mpfl: its update, distillation, halting, ratio, variability, sizes and participants: writes docs/methods/mpfl.md.

python benchmarks/mpfl.py              # two hours of one core; goes on where it was interrupted
python benchmarks/mpfl.py --only update distillation --data spar
python benchmarks/mpfl.py --size smoke --seeds 1 --page copy-of-the-page.md
python benchmarks/mpfl.py --size paper
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    partitions: Mapping[str, str]
    search: int = 5


EIGHTH = {
    "spar": "motion_cnn:means=small:scale=0.125",
    "mnist": "convnet:scale=0.125:pool=1,2,3",
    "cifar10": "resnet18:widths=8,16,32,64",
}
WHOLE = {"spar": "motion_cnn:means=adequate", "mnist": "convnet", "cifar10": "resnet18"}
FEW = {"spar": "natural", "mnist": "shards:4:15", "cifar10": "shards:4:15"}
ALL = {"spar": "iid", "mnist": "overlapping", "cifar10": "overlapping"}
SIZES = {
    "small": Size(20, 4, 20, EIGHTH, FEW),
    "smoke": Size(8, 2, 1, EIGHTH, FEW, 1),
    "paper": Size(100, 40, 200, WHOLE, ALL, 20),
}
FLEET = "phones128"
EVERYBODY = 1.0  # of the clients takes part in each round: those of a run are the participants
mpfl = partial(METHODS["mpfl"], fraction=EVERYBODY, wider=1.25, deeper=0)  # the best of the phones manage so much more


@dataclass(frozen=True)
class Bench:
    """What all parts need: the flags, the size, and the settings of the runs on one data set."""

    args: Any
    size: Size
    data: str

    @property
    def rounds(self) -> int:
        """How many a run without windows has."""
        return int(self.args.rounds or self.size.rounds)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Those of a run."""
        size, rounds = self.size, more.get("rounds", self.rounds)
        same = {"data": self.data, "model": size.models[self.data], "partition": size.partitions[self.data]}
        said = {"clients": size.clients, "fleet": FLEET, "schedule": "sync", "eval_every": max(1, rounds // 10)}
        return same | said | {"rounds": rounds} | more

    def rate(self, name: str = "mpfl", build: Callable[..., Method] = mpfl) -> float:
        """The learning rate of a method: the same search for each."""
        build, short = partial(build, epochs=self.size.epochs), self.settings(eval_every=0)
        return pages.searched(build, short, self.args.out, f"mpfl-search-{self.data}-{name}", self.size.search)

    def runs(self, build: Callable[..., Method], lr: float, **more: Any) -> list[Any]:
        """The same run for each seed; one that another part has made already is not made again."""
        method, said = build(lr=lr, epochs=self.size.epochs), self.settings(**more)
        made = [Run(method=method, seed=s, **said) for s in range(self.args.seeds)]
        return [pages.kept(run, self.args.out, f"mpfl-{self.data}") for run in made]


def summed(result: Any, metric: str) -> float:
    """What all clients said in all rounds, added up."""
    return float(sum((c["metrics"] or {}).get(metric, 0.0) for c in result.history.clients))


def scores(result: Any, metric: str = "accuracy", tier: str = "", round: int | None = None) -> list[float]:
    """Of each client (of a type) what it would use, after a round (None: the last that was scored)."""
    when = max(result.history.scored()) if round is None else round
    mine = [s for s in result.history.scores if s["round"] == when and s["model"] == "served" and s["split"] == "test"]
    return [s[metric] for s in mine if not tier or s["tier"] == tier]


def final(found: list[Any], metric: str = "accuracy") -> list[float]:
    """The mean over clients at the end of each run."""
    return [fmean(scores(x, metric)) for x in found]


def lasting(found: list[Any], metric: str = "accuracy") -> list[float]:
    """The mean over clients and over the second half of each run, of which every round is scored."""
    halves = [[r for r in x.history.scored() if 2 * r > x.rounds] for x in found]
    return [fmean(fmean(scores(x, metric, round=r)) for r in h) for x, h in zip(found, halves, strict=True)]


HEAD = ["", "test accuracy %", "macro-F1 %", "training, GFLOP", "virtual seconds", "MB, both ways"]


def line(name: str, found: list[Any], figure: Callable[..., list[float]] = final) -> list[str]:
    cost = [x.history.costs(x.rounds) for x in found]
    return [
        name,
        pages.spread(figure(found)),
        pages.spread(figure(found, "macro_f1")),
        pages.spread((c["flops"] for c in cost), 1e-9, 1),
        pages.spread((c["seconds"] for c in cost), 1, 1),
        pages.spread((c["down"] + c["up"] for c in cost), 1e-6, 1),
    ]


def page(head: list[str], rows: list[list[str]], said: list[str]) -> str:
    return f"{pages.table(head, rows)}\n\n{pages.verdicts(said)}"


# ---- the parts of the page
def update(b: Bench) -> str:
    lr, every = b.rate(), {}
    for name, share, delta in (
        ("synchronous", 1.0, 0.1),
        ("windows of 0.3", 0.3, 0.1),
        ("windows of 0.5", 0.5, 0.1),
        ("windows of 0.5, not compensated", 0.5, 0.0),
        ("windows of 0.8", 0.8, 0.1),
    ):
        n = round(b.rounds / share)  # as long, about
        more = {"rounds": n, "schedule": f"windows:share={share:g}" if share < 1 else "sync"}
        every[name] = b.runs(partial(mpfl, delta=delta), lr, **more)
    clock = min(pages.spent(x, "seconds") for found in every.values() for x in found)
    times = [share * clock for share in (0.25, 0.5, 1.0)]
    then = {name: [[pages.reached(x, "seconds", t)[0] for x in found] for t in times] for name, found in every.items()}
    rows = [[name, *map(pages.spread, then[name]), *line(name, found)[3:]] for name, found in every.items()]
    said = []
    for i, t in enumerate(times):
        for name in list(every)[1:]:
            plain = "windows of 0.5, not compensated"
            said.append(
                pages.told(f"At {t:.2f} s {name}", then[name][i], "the synchronous one", then["synchronous"][i])
            )
            if name == "windows of 0.5":
                said.append(pages.told(f"At {t:.2f} s {name}", then[name][i], plain, then[plain][i]))
    return page(["accuracy %", *(f"at {t:.2f} s" for t in times), *HEAD[3:]], rows, said)


def distillation(b: Bench) -> str:
    lr = b.rate()
    found = {"with": b.runs(mpfl, lr), "without": b.runs(partial(mpfl, distil=False), lr)}
    said = [
        pages.told(f"With distillation mpfl ({name})", final(found["with"], m), "without", final(found["without"], m))
        for name, m in (("accuracy", "accuracy"), ("macro-F1", "macro_f1"))
    ]
    return page(HEAD, [line(n, x) for n, x in found.items()], said)


def halting(b: Bench) -> str:
    lr, every, rows, said = b.rate(), {}, [], []
    for name, given in (
        ("never", {"h1": 1.0, "h2": 1.0}),
        ("h1 = 1/2, h2 = 5/8 of the epochs", {}),
        ("h1 = h2 = 1/4", {"h1": 0.25, "h2": 0.25}),
        ("Theorem 1, epsilon = 0.1", {"halting": "theorem"}),
        ("Theorem 1, epsilon = 1", {"halting": "theorem", "epsilon": 1.0}),
    ):
        every[name] = b.runs(partial(mpfl, **given), lr)
        told = [c["metrics"] for x in every[name] for c in x.history.clients if c["metrics"]]
        helped = [m["halted"] for m in told if m["class"] != 1]
        rows.append([*line(name, every[name]), f"{fmean(helped or [0]):.1f}"])
    for name in list(every)[1:]:
        said.append(pages.told(f"{name}: accuracy", final(every[name]), "never halting", final(every["never"])))
        pairs = zip(every[name], every["never"], strict=True)
        saved = [1 - pages.spent(x, "flops") / pages.spent(y, "flops") for x, y in pairs]
        said.append(f"{name}: {pages.spread(saved)} % of the operations are saved, pilots counted.")
    return page([*HEAD, "epochs with help"], rows, said)


def ratio(b: Bench) -> str:
    lr, rows, every, said = b.rate(), [], {}, []
    changed = {"drift": f"repartition:every={-(-b.rounds // 3)}", "eval_every": 1}
    for share in (0.25, 0.5, 0.75):
        for name, threshold in (("again", 0.8), ("never", 0.0)):
            found = b.runs(partial(mpfl, ratio=share, threshold=threshold), lr, **changed)
            anew = pages.spread((summed(x, "anew") for x in found), 1, 0)
            rows.append([*line(f"ratio {share:g}, {name}", found, lasting), anew])
            every[share, name] = lasting(found)
        said.append(pages.told(f"At {share:g} again", every[share, "again"], "never", every[share, "never"]))
    for share in (0.5, 0.75):
        said.append(pages.told("The ratio 0.25", every[0.25, "again"], f"{share:g}", every[share, "again"]))
    return page([*HEAD, "times found"], rows, said)


def variability(b: Bench) -> str:
    names = ("hermes", "fedavg", "local")
    builds = {"mpfl": mpfl, **{m: partial(METHODS[m], fraction=EVERYBODY) for m in names}}
    lrs, rows, said = {m: b.rate(m, build) for m, build in builds.items()}, [], []
    for i in range(1, 7):
        every = max(1, round(i * 10 * b.rounds / 200))
        changed = {"drift": f"repartition:every={every}", "eval_every": 1}
        found = {m: b.runs(build, lrs[m], **changed) for m, build in builds.items()}
        rows.append([f"V{i}, every {every} rounds, accuracy", *(pages.spread(lasting(x)) for x in found.values())])
        rows.append([f"V{i}, macro-F1", *(pages.spread(lasting(x, "macro_f1")) for x in found.values())])
        said += [pages.told(f"V{i}: mpfl", lasting(found["mpfl"]), m, lasting(found[m])) for m in names]
    return page(["", *(f"{m} (lr {lr:g})" for m, lr in lrs.items())], rows, said)


def sizes(b: Bench) -> str:
    lr, rows, every = b.rate(), [], {}
    types = [f"T{k}" for k in range(1, 9)]
    for name, model in zip(("small", "adequate", "large"), three(b), strict=True):
        found, left = b.runs(mpfl, lr, model=model), b.runs(mpfl, lr, model=model, drift="left-out")
        every |= {name: found, f"{name}, one left out": left}
        for what, results, metric in (
            ("accuracy", found, "accuracy"),
            ("macro-F1", found, "macro_f1"),
            ("one left out, accuracy", left, "accuracy"),
            ("one left out, macro-F1", left, "macro_f1"),
        ):
            held = [[scores(x, metric, t) for x in results] for t in types]
            each = [[fmean(s) for s in runs if s] for runs in held]  # a draw of phones may lack a type
            rows.append(
                [f"{name}, {what}", *(pages.spread(v) if v else "" for v in each), pages.spread(final(results, metric))]
            )
    said = [
        pages.told(f"The {n} net", final(every[n]), "the small one", final(every["small"])) for n in list(every)[2::2]
    ]
    for n in list(every)[::2]:
        said.append(
            pages.told(
                f"The {n} net with one class left out", final(every[f"{n}, one left out"]), "all", final(every[n])
            )
        )
    return page(["", *types, "all"], rows, said)


def three(b: Bench) -> list[str]:
    """The net of the data small, as it is, and large: of motion by layers as in the paper, of images by width."""
    unit = 1.0 if b.args.size == "paper" else 0.125
    if b.data == "spar":
        return [f"motion_cnn:means={means}:scale={unit:g}" for means in ("small", "adequate", "large")]
    if b.data == "mnist":
        pool = "" if b.args.size == "paper" else ":pool=1,2,3"
        return [f"convnet:scale={unit * w:g}{pool}" for w in (0.5, 1.0, 1.5)]
    return [f"resnet18:widths={','.join(str(int(64 * unit * w * 2**i)) for i in range(4))}" for w in (0.5, 1.0, 1.5)]


def participants(b: Bench) -> str:
    """On all phones: of spar there are too few samples for as many clients."""
    lr, rows, every = b.rate(), [], {}
    clients = 16 if b.args.size == "smoke" else 128
    many = {"clients": clients, "availability": "plugged", "rounds": max(1, b.rounds // 2)}
    for name, chosen in (("by criteria", True), ("drawn", False)):
        build = partial(mpfl, criteria=chosen, fraction=min(1.0, b.size.clients / clients))
        every[name] = b.runs(build, lr, **many)
        answers = pages.spread((float(sum(len(r["merged"]) for r in x.history.rounds)) for x in every[name]), 1, 0)
        rows.append([*line(name, every[name]), answers])
    both = [[float(sum(len(r["merged"]) for r in x.history.rounds)) for x in found] for found in every.values()]
    said = [
        pages.told(
            "By criteria mpfl", final(every["by criteria"]), "with participants who are drawn", final(every["drawn"])
        ),
        pages.told("By criteria the number of replies", both[0], "by a draw", both[1], 1.0, "replies"),
    ]
    return page([*HEAD, "replies"], rows, said)


PARTS: Mapping[str, Callable[[Bench], str]] = {
    f.__name__: f for f in (update, distillation, halting, ratio, variability, sizes, participants)
}


def main(words: Sequence[str] | None = None) -> None:
    parser = pages.flags(__doc__, "mpfl")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--data", nargs="+", choices=WHOLE, default=["spar", "mnist"])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts of the page alone")
    args = parser.parse_args(words)
    for name in args.only:
        fit = [d for d in args.data if name != "participants" or d != "spar"]
        told = [f"**{d}**\n\n{PARTS[name](Bench(args, SIZES[args.size], d))}" for d in fit]
        pages.written(args.page, name, "\n\n".join(told))


if __name__ == "__main__":
    main()
