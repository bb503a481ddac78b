"""FLrce with and without stopping, its thresholds, and its parts over other methods: writes docs/methods/flrce.md.

python benchmarks/flrce.py            # an hour on two cores; goes on where it was interrupted
python benchmarks/flrce.py --rounds 4 --seeds 1 --page copy-of-the-page.md
python benchmarks/flrce.py --beside fedcom,fedprox,feddrop      # more of the paper's rows, as the paper sets them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import pages

from fedquilt.codec import codec_of
from fedquilt.methods import METHODS
from fedquilt.parts.codecs import Coded
from fedquilt.parts.relation import Related
from fedquilt.parts.send import Except
from fedquilt.parts.stop import Conflict, stopped_at
from fedquilt.run import Run

DATA = {"femnist": 60, "cifar10": 40}  # rounds: about 90 seconds of one core each
OVER = "femnist"  # the data on which its parts stand over other methods
PSIS = (3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)
SEED_VARIANT = ("fedcom", "fedprox", "feddrop")  # these the paper sets in a way of its own

Runs = Mapping[str, Sequence[Any]]


def main(words: Sequence[str] | None = None) -> None:
    parser = pages.flags(__doc__, "flrce")
    parser.add_argument("--beside", default="", help="further methods, with commas")
    args = parser.parse_args(words)
    given: dict[str, dict[str, Any]] = {"fedavg": {}, "flrce": {"record_only": True}}
    given |= {n: {"variant": "seed"} if n in SEED_VARIANT else {} for n in args.beside.split(",") if n}
    for data, rounds in DATA.items():
        rounds = args.rounds or rounds
        settings = {"data": data, "clients": 100, "rounds": rounds, "eval_every": 1}  # any round may be the last
        runs: dict[str, list[Any]] = {}
        for name, more in given.items():
            builder = METHODS[name]
            search = {**settings, "eval_every": 0}
            lr = pages.searched(partial(builder, **more), search, args.out, f"search-{name}-{data}", min(15, rounds))
            runs[name] = [
                pages.kept(Run(method=builder(lr=lr, **more), seed=s, **settings), args.out, f"{name}-{data}")
                for s in range(args.seeds)
            ]
        parts = (curves(runs, rounds), efficiency(runs), sweep(runs["flrce"]), holds(runs))
        pages.written(args.page, data, "\n\n".join(parts))
    pages.written(args.page, "combinations", combinations(args))


# ---- one data set
def degrees(result: Any) -> list[list[float]]:
    """Round, degree of conflict and cohort of each exploit round, from the record."""
    told = {r["told"]["of round"]: r["told"]["conflict"] for r in result.history.rounds if "conflict" in r["told"]}
    return [[round, degree, 10] for round, degree in sorted(told.items())]


def stop(result: Any, psi: float | None = None) -> int | None:
    """The round in which a threshold (None: half of the cohort) would have ended the run."""
    return stopped_at(degrees(result), psi)


def ends(runs: Runs) -> list[int]:
    """After how many rounds FLrce ends, by seed."""
    return [stop(x) or x.rounds for x in runs["flrce"]]


def scores(results: Sequence[Any], rounds: Sequence[int]) -> list[float]:
    """The accuracy of each run after so many rounds."""
    return [pages.accuracy(x, round=n) for x, n in zip(results, rounds, strict=True)]


def curves(runs: Runs, rounds: int) -> str:
    early, rows = ends(runs), []
    for r in sorted({*range(0, rounds + 1, max(1, rounds // 10)), rounds}):
        row = [pages.spread(scores(runs[m], [r] * len(runs[m]))) for m in ("fedavg", "flrce")]
        rows.append([r, *row, pages.spread(scores(runs["flrce"], [min(r, n) for n in early]))])
    head = ["round", "fedavg, test accuracy %", "flrce without stopping", "flrce, stopping at psi = P/2"]
    return pages.table(head, rows)


def efficiencies(results: Sequence[Any], rounds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Accuracy by joules (eq. 8) and by bytes (eq. 9) of all clients, after so many rounds."""
    acc, cost = scores(results, rounds), [x.history.costs(n) for x, n in zip(results, rounds, strict=True)]
    by_energy = [a / c["joules"] for a, c in zip(acc, cost, strict=True)]
    return by_energy, [a / (c["down"] + c["up"]) for a, c in zip(acc, cost, strict=True)]


def efficiency(runs: Runs) -> str:
    def line(name: str, results: Sequence[Any], until: Sequence[int]) -> list[str]:
        energy, traffic = efficiencies(results, until)
        figures = (scores(results, until), 100.0, 1), (energy, 1e5, 2), (traffic, 1e11, 1)
        return [name, ", ".join(map(str, until)), *(pages.spread(v, s, d) for v, s, d in figures)]

    early = ends(runs)
    whole = [line(m, x, [y.rounds for y in x]) for m, x in runs.items() if m != "flrce"]
    rows = [
        *whole,
        line("flrce without stopping", runs["flrce"], [x.rounds for x in runs["flrce"]]),
        line("flrce, psi = P/2", runs["flrce"], early),
        line("fedavg, ended when flrce does", runs["fedavg"], early),
    ]
    return pages.table(["method", "rounds, by seed", "test accuracy %", "% per kJ (eq. 8)", "% per GB (eq. 9)"], rows)


def sweep(results: Sequence[Any]) -> str:
    rows = []
    for psi in PSIS:
        at = [stop(x, psi) for x in results]
        acc = scores(results, [n or x.rounds for x, n in zip(results, at, strict=True)])
        rows.append([psi, ", ".join("never" if n is None else str(n) for n in at), pages.spread(acc)])
    return pages.table(["psi", "stops after round, by seed", "test accuracy % then"], rows)


def holds(runs: Runs) -> str:
    """The paper's claims, each as differences by seed."""
    avg, rce, early = runs["fedavg"], runs["flrce"], ends(runs)
    last = [x.rounds for x in rce]
    third = [max(1, n // 3) for n in last]
    energy, traffic = efficiencies(rce, early)
    whole, same = efficiencies(avg, last), efficiencies(avg, early)

    def points(a: Sequence[float], b: Sequence[float]) -> list[float]:
        return [100 * (x - y) for x, y in zip(a, b, strict=True)]

    def percent(a: Sequence[float], b: Sequence[float]) -> list[float]:
        return [100 * (x / y - 1) for x, y in zip(a, b, strict=True)]

    claims = (
        (
            "after a third of the rounds it is above fedavg, in points",
            points(scores(rce, third), scores(avg, third)),
            0,
        ),
        ("it is above fedavg after the last round, points", points(scores(rce, last), scores(avg, last)), 0),
        ("stopping at P/2 costs at most 4 points", points(scores(rce, early), scores(rce, last)), -4),
        ("it stops early: rounds saved", [n - m for n, m in zip(last, early, strict=True)], 0),
        ("eq. 8 is above that of fedavg, %", percent(energy, whole[0]), 0),
        ("eq. 9 is above that of fedavg, %", percent(traffic, whole[1]), 0),
        ("eq. 8 is above that of fedavg ended in the same round, %", percent(energy, same[0]), 0),
    )
    rows = [[claim, pages.spread(d, 1.0), verdict(d, least)] for claim, d, least in claims]
    return pages.table(["claim", "measured", "does it hold?"], rows)


def verdict(differences: Sequence[float], least: float) -> str:
    """Whether the differences, one by seed, are above ``least``, and by more than they vary."""
    over, around = fmean(differences) - least, stdev(differences) if len(differences) > 1 else 0.0
    return "yes" if over > around else "no" if -over > around else "not beyond the spread"


# ---- over other methods
def combinations(args: Any) -> str:
    settings: dict[str, Any] = {"data": OVER, "clients": 100, "rounds": args.rounds or 40, "eval_every": 10}
    part = {"select": Related(), "stop": Conflict(explore=0.98, record_only=True)}
    avg, spu, hetero = (METHODS[m](lr=0.05) for m in ("fedavg", "fedspu", "heterofl"))
    frozen = replace(spu, name="frozen", send=Except(("conv1.conv.*",)))
    eight = replace(avg, name="eight-bit", local=Coded(avg.local, codec_of("uniform:8"), False))
    rows = []
    for name, method in (("fedspu", spu), ("heterofl", hetero), ("8-bit uploads", eight), ("conv1 frozen", frozen)):
        for what, one in ((name, method), (f"flrce over {name}", replace(method, **part))):
            x = pages.kept(Run(method=one, **settings), args.out, f"combination-{what.replace(' ', '-')}")
            high = [d for _, d, _ in degrees(x)]
            cost = x.history.costs(x.rounds)
            rows.append(
                [
                    what,
                    pages.spread([pages.accuracy(x)]),
                    f"{(cost['down'] + cost['up']) / 1e6:.1f}",
                    f"{cost['joules'] / 1e3:.1f}",
                    f"{fmean(high):.1f} in {len(high)} rounds" if high else "",
                    stop(x) or "never" if "flrce" in what else "",
                ]
            )
    head = ["method", "test accuracy %", "MB", "kJ", "mean conflict in exploit rounds", "psi = P/2 stops after round"]
    return pages.table(head, rows)


if __name__ == "__main__":
    main()
