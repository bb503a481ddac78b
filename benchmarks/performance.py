"""Where a round's time goes, how far that is from the floor, what widths save: writes docs/performance.md.

python benchmarks/performance.py               # five minutes on a quiet machine
python benchmarks/performance.py --only goals  # what was promised beside what `make bench` has measured
python benchmarks/performance.py --tiny --page copy-of-the-page.md
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages
from speed.field import work_of
from speed.result import Row, machine
from speed.work import Work

from fedquilt.cover import take
from fedquilt.drive import rounds, sim, site
from fedquilt.engine import Setup
from fedquilt.engine.serial import Serial
from fedquilt.engine.trim import blocks, trimmed
from fedquilt.fit import Fit
from fedquilt.key import Key
from fedquilt.meter import count
from fedquilt.method import Method
from fedquilt.methods import METHODS
from fedquilt.model import Model
from fedquilt.models import build
from fedquilt.prepare import prepare
from fedquilt.step import Training, training
from fedquilt.store import InRam, OnDisk
from fedquilt.task import Classification
from fedquilt.types import Handle

WIDTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
NETS: Mapping[str, tuple[dict[str, Any], tuple[int, ...], int, int]] = {  # spec, input, classes, batch
    "W1's net": ({"name": "emnist_cnn"}, (1, 28, 28), 62, 16),
    "W2's net": ({"name": "cifar_cnn"}, (3, 32, 32), 10, 128),
    "VGG11": ({"name": "vgg11"}, (3, 32, 32), 10, 20),
}
Timed = tuple[Callable[[], None], float]
TRAINING, BATCHES = "training steps", "batches: shuffling, gathering, laying out"
SCORING = "scoring, a tenth of it"


# ---- where the time goes
class Clock:
    """Seconds by place; of places inside one another the inner one has them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = time.perf_counter()

    def _pass(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def timed(self, place: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def inside(*args: Any, **given: Any) -> Any:
            if SCORING in self._open:  # all that scoring takes is scoring
                return work(*args, **given)
            self._pass()
            self._open.append(place)
            try:
                return work(*args, **given)
            finally:
                self._pass()
                self._open.pop()

        return inside


PLACES: Sequence[tuple[str, object, str]] = (
    ("choosing clients, cutting orders", Method, "plan"),
    ("encoding and reading messages", sim, "order_size"),
    ("encoding and reading messages", site, "encode_reply"),
    ("the guard", rounds, "admit"),
    ("merging", Method, "step"),
    ("work around training: sewing, cutting, memory", site.Here, "work"),
    (BATCHES, Serial, "_fit"),
    ("meters", Serial, "_cost"),
    (TRAINING, Training, "step"),
    (SCORING, sim.Simulator, "judge"),
    ("the loop of rounds", sim.Simulator, "round"),
)


@contextmanager
def watched(clock: Clock) -> Iterator[None]:
    """The library with a clock at its places."""
    patches = [patch.object(where, name, clock.timed(place, getattr(where, name))) for place, where, name in PLACES]
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()


def anatomy(work: Work, method: str, n: int) -> tuple[dict[str, float], float]:
    """Milliseconds of a client's part of a round by place, serially; and FLOPs of a round."""
    made = prepare(work.run(method, rounds=n + 1), InRam())
    now, _ = made.sim.round(made.sim.begin())  # the first meets every shape for the first time
    clock, flops = Clock(), 0.0
    with watched(clock):
        for _ in range(n):
            now, told = made.sim.round(now)
            flops += told.record["flops"]
        made.sim.judge(now.state, made.data.clients, ("test",), False)  # validation data are the test data here
    clock.seconds[SCORING] *= n / 10  # it was done once, and is due every tenth round
    scale = 1e3 / (n * work.cohort)
    return {place: scale * s for place, s in clock.seconds.items()}, flops / n


def outside(parts: Mapping[str, float], scoring: bool) -> float:
    """What of a client's part of a round is no training."""
    return sum(s for place, s in parts.items() if place not in (TRAINING, BATCHES) and (scoring or place != SCORING))


def where(args: argparse.Namespace) -> str:
    cases = [("W1", "fedavg"), ("W5", "fedavg"), ("W5", "fedspu"), ("W5", "heterofl")]
    found = [anatomy(work_of(w, args.tiny), m, args.rounds)[0] for w, m in cases]
    places = dict.fromkeys(p for p, *_ in PLACES)
    rows = [[p, *(f"{f.get(p, 0.0):.2f}" for f in found)] for p in places]
    whole = [sum(f.values()) for f in found]
    rows.append(["**all**", *(f"{w:.2f}" for w in whole)])
    for what, scoring in (("outside training", True), ("outside training and scoring", False)):
        out = [outside(f, scoring) for f in found]
        rows.append([what, *(f"{o:.2f}: {o / w:.1%}" for o, w in zip(out, whole, strict=True))])
    return pages.table(["milliseconds a client", *(f"{w}, {m}" for w, m in cases)], rows)


# ---- the floor
def speed_of_mm(size: int = 1024, times: int = 8) -> float:
    """FLOP a second of torch's own product of two matrices, one thread: the best of some."""
    a, best = torch.randn(size, size), 0.0
    for _ in range(times):
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def floor(args: argparse.Namespace) -> str:
    rows, peak = [], speed_of_mm()
    for name in ("W1", "W2"):
        work = work_of(name, args.tiny)
        found, flops = anatomy(work, "fedavg", args.rounds)
        took, least = sum(found.values()) * work.cohort / 1e3, flops / peak
        rows.append([name, f"{flops / 1e9:.1f}", f"{least:.3f}", f"{took:.3f}", f"{took / least:.1f}"])
    head = ["", "GFLOP a round", "s at the speed of `torch.mm`", "s a round, serially", "times the floor"]
    return f"{pages.table(head, rows)}\n\n`torch.mm` of 1,024 x 1,024, one thread: {peak / 1e9:.0f} GFLOP/s."


# ---- widths
def request(model: Model, classes: int, batch: int, width: float, frozen: bool) -> Fit:
    """A training of the slice; or of the whole net, with all but the slice frozen."""
    cover = model.prefix(width)
    start = model.params() if frozen else take(model.params(), cover)
    free = cover if frozen else None
    task = Classification(classes)
    return Fit(model, task, start, Handle(0, "train"), Key(0), batch=batch, free=free, norm="batch")


def step_of(model: Model, shape: tuple[int, ...], classes: int, batch: int, width: float, frozen: bool) -> Timed:
    """A training step to be timed, and its FLOPs."""
    laid = Serial({}, Setup.resolve(model))._laid  # type: ignore[arg-type]
    f = request(model, classes, batch, width, frozen)
    x, y = laid(torch.randn(batch, *shape)), torch.arange(batch) % classes
    run, found = Training.of(f, y, laid), blocks(f)

    def step() -> None:
        with trimmed(found, run.moving):
            run.step(x, y)

    with training(model.net, f.key):
        ways = count(step)
    return step, ways.forward + ways.backward


def widths(args: argparse.Namespace) -> str:
    parts = []
    for name, (spec, *about) in NETS.items():
        model, rows = build(spec, Key(0)), []
        steps = {(w, frozen): step_of(model, *about, w, frozen) for w in WIDTHS for frozen in (False, True)}
        took: dict[tuple[float, bool], list[float]] = {k: [] for k in steps}
        for _ in range(args.rounds * 6):  # in turn, so that a busy moment is shared
            for k, (step, _) in steps.items():
                began = time.perf_counter()
                step()
                took[k].append(time.perf_counter() - began)
        seconds, whole = {k: median(v[1:]) for k, v in took.items()}, (1.0, False)
        for w in WIDTHS:
            line = [f"{w:g}"]
            for k in ((w, False), (w, True)):
                line += [f"{1e3 * seconds[k]:.2f}", f"{seconds[k] / seconds[whole]:.2f}"]
                line.append(f"{steps[k][1] / steps[whole][1]:.2f}")
            rows.append(line)
        kinds = [f"{kind}: {what}" for kind in ("slice", "freeze") for what in ("ms a step", "time", "FLOPs")]
        parts.append(f"**{name}**, batches of {about[-1]}\n\n{pages.table(['width', *kinds], rows)}")
    return "\n\n".join(parts)


# ---- what does not grow
def disk(args: argparse.Namespace) -> str:
    """Bytes that a client's memory takes, for each method that has one, after three rounds of W1's net."""
    work, rows = work_of("W1", True), []
    whole = 0
    for name in METHODS:
        with TemporaryDirectory() as folder:
            run = replace(work.run(rounds=3), method=METHODS[name]())
            made = prepare(run, OnDisk(folder, durable=False))
            whole = sum(t.numel() * t.element_size() for t in made.sim.model.params().values())
            now, seen = made.sim.begin(), set()
            for _ in range(3):
                now, told = made.sim.round(now)
                seen |= {c["client"] for c in told.clients}
            size = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
        if seen and size > 0.01 * whole * len(seen):
            rows.append([name, f"{size / len(seen):,.0f}", f"{size / len(seen) / whole:.2f}"])
    head = ["method", "bytes a client that took part", "times the model"]
    said = f"The model: {whole:,} bytes; two versions of a memory are kept. All other methods keep less than 1 % of it."
    return f"{pages.table(head, rows)}\n\n{said}"


def scale(args: argparse.Namespace) -> str:
    rows = []
    for name in ("W6-1000", "W6-10000", "W6-100000"):
        work = work_of(name, False)
        for r in found(args, name):
            if r.rounds:
                data = sum(work.sizes()) * 4 / 3 * (work.shape[0] * 4 + 8)
                each = 1e3 * median(r.rounds.values()) / work.cohort
                many = [f"{n / 1e6:.0f}" for n in (r.bytes, data)]
                rows.append([f"{work.clients:,}", work.cohort, r.name.replace("*", ""), f"{each:.2f}", *many])
    head = ["clients", "a round", "", "ms a client", "MB held, all processes", "of which data"]
    return pages.table(head, rows)


# ---- what was promised
def found(args: argparse.Namespace, work: str) -> list[Row]:
    folder = Path(args.bench) / work
    if not (folder / "done").exists():
        raise SystemExit(
            f"{folder} holds no measurement of {work}: run `make bench` first, or name its folder by --bench"
        )
    return Row.all(folder)


def times(rows: Sequence[Row], slow: str, fast: str) -> float:
    """How many times as long one takes as another, in the same rounds; of ours the faster way."""
    by = {r.contestant: r for r in rows if r.rounds}
    if slow not in by or fast not in by:
        return float("nan")
    return median(by[slow].against(by[fast]))


def first_round() -> float:
    """Seconds from typing the command to the end of the first round."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [sys.executable, "-m", "fedquilt", "run", "fedspu", "--clients", "10", "--rounds", "1", "--eval-every", "0"]
    took = []
    for _ in range(3):
        with TemporaryDirectory() as folder:
            began = time.perf_counter()
            subprocess.run([*words, "--out", str(Path(folder) / "run")], check=True, capture_output=True, env=env)
            took.append(time.perf_counter() - began)
    return median(took)


def goals(args: argparse.Namespace) -> str:
    one, two, five = (found(args, w) for w in ("W1", "W2", "W5"))
    serial, both = "fedquilt:fedavg:0", f"fedquilt:fedavg:{args.cores}"
    least: list[tuple[str, float, float]] = [
        ("W1: Flower's simulation, author-style client", times(one, "flower", both), 2.0),
        ("W1: pfl as it comes", times(one, "pfl", both), 2.0),
        ("W1: Flower's simulation, tuned client", times(one, "flower-tuned", both), 1.1),
        ("W1: pfl in channels-last", times(one, "pfl-tuned", both), 1.1),
        ("W1: FedJAX", times(one, "fedjax", both), 1.1),
        ("W2: Flower's simulation, author-style client", times(two, "flower", both), 1.2),
        ("W2: pfl as it comes", times(two, "pfl", both), 1.7),
        ("W2: FedJAX", times(two, "fedjax", both), 2.0),
        ("W1: tuned loop by hand, beside the serial engine", times(one, "loop", serial), 1.0),
        (f"W1: one process beside {args.cores}", times(one, serial, both), 1.6),
        (f"W2: one process beside {args.cores}", times(two, serial, both), 1.6),
    ]
    rows = [
        [what, f"at least {goal:g} times as long", f"{got:.3f}", word(got >= goal, got)] for what, got, goal in least
    ]
    parts, _ = anatomy(work_of("W1", False), "fedavg", args.rounds)
    whole, out, bare = sum(parts.values()), outside(parts, True), outside(parts, False)
    spu = times(five, "fedquilt:fedspu:0", serial), times(five, f"fedquilt:fedspu:{args.cores}", both)
    first = first_round()
    rows += [
        ["W1: outside training, of a round", "under 10 %", f"{out / whole:.1%}", word(out / whole < 0.1)],
        ["W1: outside training, a client", "under 5 ms", f"{out:.2f} ms", word(out < 5)],
        ["W1: the same without its part of scoring everybody", "under 5 ms", f"{bare:.2f} ms", word(bare < 5)],
        ["W5: fedspu beside fedavg, serially", "at most 1.1", f"{spu[0]:.2f}", word(spu[0] <= 1.1, spu[0])],
        [f"W5: the same, {args.cores} processes", "at most 1.1", f"{spu[1]:.2f}", word(spu[1] <= 1.1, spu[1])],
        ["`fedquilt run fedspu` to the end of its first round", "under 5 s", f"{first:.1f} s", word(first < 5)],
    ]
    return pages.table(["", "goal", "measured", ""], rows)


def word(good: bool, value: float = 0.0) -> str:
    return "not measured" if value != value else "reached" if good else "**missed**"


PARTS: Mapping[str, Callable[[argparse.Namespace], str]] = {
    "goals": goals, "round": where, "floor": floor, "widths": widths, "scale": scale, "disk": disk,
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts of the page alone")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--bench", default="runs/bench", help="where `make bench` keeps what it measured")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--page", default="docs/performance.md")
    parser.add_argument("--tiny", action="store_true", help="small enough for a test: of no use as a figure")
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    for name in args.only:
        pages.written(args.page, name, PARTS[name](args))
        print(f"written: {name}", flush=True)
    pages.written(args.page, "machine", machine())


if __name__ == "__main__":
    main()
