"""What was measured, as rows, and as a page."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from pages import table

from .work import BY_NAME

EVERY = 10  # rounds between two evaluations
NEAR, ROUGH = 0.01, 0.15  # how far a loss may be from ours: same order of samples; another order
CANNOT = {
    "pfl": "does not reshuffle between epochs; statistics of normalisation are not averaged",
    "fedjax": "batches run on over epochs; no statistics of normalisation; an order of samples of its own",
}
KINDS = {
    "author": "loop as released code has it, all cores",
    "loop": "tuned loop, autograd in channels-last, one core",
    "flower": "Flower's simulation, author-style client, an actor a core",
    "flower-tuned": "Flower's simulation, tuned client, an actor a core",
    "pfl": "pfl's simulation as it comes, all cores",
    "pfl-tuned": "pfl's simulation in channels-last, all cores",
    "fedjax": "FedJAX, all cores",
}
PACKAGES = ("torch", "numpy", "flwr", "ray", "pfl", "fedjax", "jax", "jaxlib")


@dataclass
class Row:
    """One contestant in one workload."""

    contestant: str
    rounds: dict[int, float] = field(default_factory=dict)
    scores: list[dict[str, float]] = field(default_factory=list)
    done: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    bytes: float = 0.0
    failed: str = ""
    differs: str = ""
    wrong: bool = False

    @property
    def name(self) -> str:
        """For people."""
        if not self.contestant.startswith("fedquilt"):
            return KINDS[self.contestant]
        _, method, workers = self.contestant.split(":")
        return f"**fedquilt**, {method}, {workers + ' processes' if int(workers) else 'serial, one core'}"

    @cached_property
    def evaluation(self) -> float:
        """Seconds that scoring takes, a round."""
        return self.scores[-1]["seconds"] / EVERY if self.scores else 0.0

    @cached_property
    def seconds(self) -> float:
        """The median round, with its part of an evaluation."""
        return median(self.rounds.values()) + self.evaluation

    def against(self, other: Row) -> list[float]:
        """For each round that both did, how many times as long this took."""
        return [
            (self.rounds[n] + self.evaluation) / (other.rounds[n] + other.evaluation)
            for n in sorted(self.rounds.keys() & other.rounds.keys())
        ]

    @staticmethod
    def all(folder: Path) -> list[Row]:
        """The rows of a workload, compared."""
        rows: dict[str, Row] = {}
        for line in (folder / "rounds.jsonl").read_text().splitlines():
            said = json.loads(line)
            row = rows.setdefault(said["contestant"], Row(said["contestant"]))
            if "error" in said:
                row.failed = said["error"]
            elif said["kind"] == "round":
                row.done[said["round"]] = said["steps"], said["samples"]
                if said["round"]:
                    row.rounds[said["round"]] = said["seconds"]
            elif said["kind"] == "score":
                row.scores.append(said)
            elif said["kind"] == "memory":
                row.bytes = said["bytes"]
        found = list(rows.values())
        for row in found:
            row.compare(found)
        return found

    def compare(self, all: Sequence[Row]) -> None:
        """Does it compute what our first contestant does?  Steps, samples, and the loss before and after round 0."""
        mine = next((r for r in all if r.contestant.startswith("fedquilt:fedavg")), None)
        plain = next((r for r in all if r.contestant in ("author", "loop") and len(r.scores) > 1), None)
        if mine is None or self.failed or (":" in self.contestant and ":fedavg:" not in self.contestant):
            return
        own = next((why for peer, why in CANNOT.items() if self.contestant.startswith(peer)), "")
        kind, other, far = ("loss", mine, NEAR) if not own else ("batch_loss", plain, ROUGH)
        said = [own] * bool(own)
        if own and plain is None:
            said.append("its loss was not compared: no loop ran beside it")
        elif other is not None and len(self.scores) > 1 and len(other.scores) > 1:
            off = [abs(a[kind] / b[kind] - 1) for a, b in zip(self.scores[:2], other.scores[:2], strict=True)]
            said.append(f"loss {self.scores[1][kind]:.4f} ({other.scores[1][kind]:.4f})")
            self.wrong = off[0] > 1e-4 or off[1] > far
        steps, samples = self.done[0]
        if samples != mine.done[0][1]:
            said.append(f"{samples} samples for {mine.done[0][1]}")
            self.wrong = True
        if steps is not None and steps != mine.done[0][0]:
            said.append(f"{steps} steps for {mine.done[0][0]}")
            self.wrong |= not own
        self.differs = "; ".join(said)


def told(rows: Mapping[str, Sequence[Row]], command: str) -> str:
    """The page."""
    parts = [
        "# How fast a round is",
        f"Written by `{command}` (`make bench` first makes the environment). What each workload is: "
        "`benchmarks/speed/work.py`. A round's seconds are the median over the timed rounds plus a tenth of an "
        "evaluation, which for fedquilt is every client's own model on its validation and test part and the global "
        "model, for the others one loss of the global model; in W6 rounds alone. `times` is how many times as long a "
        "round takes as the fastest fedquilt of fedavg in the same round: the median, and the quartiles. The loss "
        "after the first round stands beside that of what it is compared with, in brackets. Data are random numbers "
        "from a key.",
        machine(),
    ]
    for name, found in rows.items():
        done = [r for r in found if r.rounds]
        ours = [r for r in done if r.contestant.startswith("fedquilt:fedavg")]
        best = min(ours, key=lambda r: r.seconds, default=None)
        parts.append(f"## {name}: {BY_NAME[name].about}")
        lines = [line(r, best) for r in found]
        for peer in BY_NAME[name].peers:
            if peer not in {r.contestant for r in found}:
                lines.append([KINDS[peer], "", "", "", "", "not measured: not installed, or not asked for"])
        if not BY_NAME[name].peers:
            lines.append(["Flower, pfl, FedJAX, a loop", "", "", "", "", _why(name)])
        elif "flower" not in BY_NAME[name].peers:
            lines.append(["Flower, pfl, FedJAX", "", "", "", "", _why(name)])
        parts.append(table(["", "s a round", "times", "rounds", "MB", "compared"], lines))
    return "\n\n".join(parts) + "\n"


def _why(name: str) -> str:
    if name == "W5":
        return "none of them trains a part of a model: their round would be W1's, for every device"
    if name.startswith("W6"):
        return "not measured: this is about the population, and their data are all in memory from the start"
    return "not measured: this net is not written for them here"


def line(r: Row, best: Row | None) -> list[str]:
    """A row of the table."""
    if not r.rounds:
        return [r.name, "", "", "", "", f"failed: {r.failed}"]
    ratios = r.against(best) if best else []
    middle = f"{median(ratios):.2f}" if ratios else ""
    if len(ratios) > 1:
        low, _, high = quantiles(ratios, n=4)
        middle += f" ({low:.2f} to {high:.2f})"
    said = r.differs + (f" then failed: {r.failed}" if r.failed else "")
    return [r.name, f"{r.seconds:.3f}", middle, str(len(r.rounds)), f"{r.bytes / 1e6:.0f}", said]


def machine() -> str:
    """Where it was measured, with what."""
    cpu = next((s.partition(":")[2].strip() for s in _lines("/proc/cpuinfo") if s.startswith("model name")), "")
    there = {p: _version(p) for p in PACKAGES}
    packages = ", ".join(f"{p} {v}" for p, v in there.items() if v)
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"Machine: {cpu or platform.processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}; {packages}. Load when this was written: "
        f"{psutil.getloadavg()[0]:.1f}."
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
