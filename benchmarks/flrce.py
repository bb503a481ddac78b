"""FLrce with and without stopping, its thresholds, and its parts over other methods: writes docs/methods/flrce.md.

python benchmarks/flrce.py            # an hour on two cores; goes on where it was interrupted
python benchmarks/flrce.py --rounds 4 --seeds 1 --page copy-of-the-page.md
"""

from __future__ import annotations

from dataclasses import replace
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
EVERY = 2
PSIS = (3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)


def main() -> None:
    args = pages.flags(__doc__, "flrce").parse_args()
    for data, rounds in DATA.items():
        rounds = args.rounds or rounds
        settings = {"data": data, "clients": 100, "rounds": rounds, "eval_every": EVERY}
        runs: dict[str, list[Any]] = {}
        for name, given in (("fedavg", {}), ("flrce", {"record_only": True})):
            builder = METHODS[name]
            lr = pages.searched(builder, settings, args.out, f"search-{name}-{data}", min(15, rounds))
            runs[name] = [
                pages.kept(Run(method=builder(lr=lr, **given), seed=s, **settings), args.out, f"{name}-{data}")
                for s in range(args.seeds)
            ]
        pages.written(args.page, data, "\n\n".join((curves(runs, rounds), efficiency(runs), sweep(runs["flrce"]))))
    pages.written(args.page, "combinations", combinations(args))


# ---- one data set
def degrees(result: Any) -> list[list[float]]:
    """Round, degree of conflict and cohort of each exploit round, from the record."""
    told = {r["told"]["of round"]: r["told"]["conflict"] for r in result.history.rounds if "conflict" in r["told"]}
    return [[round, degree, 10] for round, degree in sorted(told.items())]


def stop(result: Any, psi: float | None = None) -> int | None:
    """The round in which a threshold (None: half of the cohort) would have ended the run."""
    return stopped_at(degrees(result), psi)


def scored(result: Any, round: int) -> int:
    """The first round that was scored from this one on."""
    return min((r for r in result.history.scored() if r >= round), default=result.rounds)


def curves(runs: dict[str, list[Any]], rounds: int) -> str:
    at = sorted({r for r in range(0, rounds + 1, max(EVERY, rounds // 8 // EVERY * EVERY))} | {rounds})
    rows = [[r, *(pages.spread(pages.accuracy(x, round=r) for x in runs[m]) for m in ("fedavg", "flrce"))] for r in at]
    return pages.table(["round", "fedavg, test accuracy %", "flrce, no stopping, test accuracy %"], rows)


def efficiency(runs: dict[str, list[Any]]) -> str:
    def line(name: str, results: list[Any], until: list[int]) -> list[str]:
        acc = [pages.accuracy(x, round=scored(x, n)) for x, n in zip(results, until, strict=True)]
        cost = [
            {k: sum(r[k] for r in x.history.rounds[:n]) for k in ("joules", "down", "up")}
            for x, n in zip(results, until, strict=True)
        ]
        per_kj = [1e3 * a / c["joules"] for a, c in zip(acc, cost, strict=True)]
        per_gb = [1e9 * a / (c["down"] + c["up"]) for a, c in zip(acc, cost, strict=True)]
        return [
            name,
            ", ".join(map(str, until)),
            pages.spread(acc),
            pages.spread(per_kj, digits=2),
            pages.spread(per_gb, digits=1),
        ]

    all_of = {m: [x.rounds for x in runs[m]] for m in runs}
    early = [stop(x) or x.rounds for x in runs["flrce"]]
    rows = [
        line("fedavg", runs["fedavg"], all_of["fedavg"]),
        line("flrce, no stopping", runs["flrce"], all_of["flrce"]),
        line("flrce, psi = P/2", runs["flrce"], early),
    ]
    return pages.table(["method", "rounds, by seed", "test accuracy %", "% per kJ (eq. 8)", "% per GB (eq. 9)"], rows)


def sweep(results: list[Any]) -> str:
    rows = []
    for psi in PSIS:
        at = [stop(x, psi) for x in results]
        acc = [pages.accuracy(x, round=scored(x, n or x.rounds)) for x, n in zip(results, at, strict=True)]
        rows.append([psi, ", ".join("never" if n is None else str(n) for n in at), pages.spread(acc)])
    return pages.table(["psi", "stops after round, by seed", "test accuracy % then"], rows)


# ---- over other methods
def combinations(args: Any) -> str:
    settings: dict[str, Any] = {"data": "femnist", "clients": 100, "rounds": args.rounds or 40, "eval_every": 10}
    part = {"select": Related(), "stop": Conflict(explore=0.98, record_only=True)}
    avg, spu, hetero = (METHODS[m](lr=0.05) for m in ("fedavg", "fedspu", "heterofl"))
    frozen = replace(spu, name="frozen", send=Except(("conv1.*",)))
    eight = replace(avg, name="eight-bit", local=Coded(avg.local, codec_of("uniform:8"), False))
    rows = []
    for name, method in (("fedspu", spu), ("heterofl", hetero), ("8-bit uploads", eight), ("conv1 frozen", frozen)):
        for what, one in ((name, method), (f"flrce over {name}", replace(method, **part))):
            x = pages.kept(Run(method=one, **settings), args.out, f"combination-{what.replace(' ', '-')}")
            high = [d for _, d, _ in degrees(x)]
            cost = {k: sum(r[k] for r in x.history.rounds) for k in ("down", "up", "joules")}
            rows.append(
                [
                    what,
                    pages.spread([pages.accuracy(x)]),
                    f"{(cost['down'] + cost['up']) / 1e6:.1f}",
                    f"{cost['joules'] / 1e3:.1f}",
                    f"{sum(high) / len(high):.1f} in {len(high)} rounds" if high else "",
                    stop(x) or "never" if "flrce" in what else "",
                ]
            )
    head = ["method", "test accuracy %", "MB", "kJ", "mean conflict in exploit rounds", "psi = P/2 stops after round"]
    return pages.table(head, rows)


if __name__ == "__main__":
    main()
