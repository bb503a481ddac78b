"""When a client is there, whether it answers, and how slow it is: pure functions of client, round, time and key."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..key import Key
from .devices import Device

EDGE = 1e-9  # of a period: a client that is woken at the edge of its window is inside


def chance(key: Key) -> float:
    """One number in [0, 1), named by the key."""
    return key.number() / (1 << 63)


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a share, from 0 to 1, not {value}")


class Availability(Protocol):
    """Is a client there, in this round and at this virtual time?  And if not, when could it be again?

    ``next`` is ``clock`` where waiting does not help (the next round draws again), infinity where
    the client never comes back.
    """

    def __call__(self, client: int, device: Device, round: int, clock: float, key: Key) -> bool: ...
    def next(self, client: int, device: Device, clock: float, key: Key) -> float: ...


@dataclass(frozen=True)
class Always:
    """Every client is there all the time."""

    def __call__(self, client: int, device: Device, round: int, clock: float, key: Key) -> bool:
        """It is."""
        return True

    def next(self, client: int, device: Device, clock: float, key: Key) -> float:
        """Now."""
        return clock


@dataclass(frozen=True)
class Random(Always):
    """In each round, each client is there with probability ``share``."""

    share: float = 0.5

    def __post_init__(self) -> None:
        _share("share", self.share)

    def __call__(self, client: int, device: Device, round: int, clock: float, key: Key) -> bool:
        """The draw of this round."""
        return chance(key.at("round", round, client)) < self.share


@dataclass(frozen=True)
class ByWidth(Always):
    """The stronger, the more often: in each round with a probability from ``weak`` (width 0) to ``strong`` (1)."""

    weak: float = 0.2
    strong: float = 1.0

    def __post_init__(self) -> None:
        _share("weak", self.weak)
        _share("strong", self.strong)

    def __call__(self, client: int, device: Device, round: int, clock: float, key: Key) -> bool:
        """The draw of this round."""
        return chance(key.at("round", round, client)) < self.weak + (self.strong - self.weak) * device.width


@dataclass(frozen=True)
class Plugged(Always):
    """Only devices that are plugged in."""

    def __call__(self, client: int, device: Device, round: int, clock: float, key: Key) -> bool:
        """Is it plugged in?"""
        return device.plugged

    def next(self, client: int, device: Device, clock: float, key: Key) -> float:
        """Now or never."""
        return clock if device.plugged else math.inf


@dataclass(frozen=True)
class DayNight:
    """There for a ``share`` of each ``period`` of seconds; when that begins is drawn for each client.

    ``spread`` is the part of the period over which those beginnings lie: 1 is a fleet around the
    globe, 0 one in which all wake at the same time (at second 0).
    """

    period: float = 86400.0
    share: float = 0.5
    spread: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.period) and self.period > 0):
            raise ValueError(f"period is a number of seconds above 0, not {self.period}")
        _share("share", self.share)
        _share("spread", self.spread)
        if self.share == 0:
            raise ValueError("share is 0: nobody would ever be there")

    def _place(self, client: int, clock: float, key: Key) -> tuple[float, float]:
        phase = self.spread * chance(key.at("phase", client))
        return clock / self.period + phase, phase

    def __call__(self, client: int, device: Device, round: int, clock: float, key: Key) -> bool:
        """Is this time inside the client's window?"""
        place, _ = self._place(client, clock, key)
        return (place + EDGE) % 1 < self.share + EDGE

    def next(self, client: int, device: Device, clock: float, key: Key) -> float:
        """Now, or when its next window begins."""
        if self(client, device, 0, clock, key):
            return clock
        place, phase = self._place(client, clock, key)
        return (math.floor(place + EDGE) + 1 - phase) * self.period


@dataclass(frozen=True)
class Trace:
    """From a file of windows: CSV with the columns client, start, end (seconds), or JSON lines with those keys.

    The start of a window is inside, its end is not.  A client that the file does not name is never
    there.  With a ``period`` of seconds above 0 the file is repeated.
    """

    path: str
    period: float = 0.0
    windows: Mapping[int, tuple[tuple[float, float], ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.period) and self.period >= 0):
            raise ValueError(f"period is a number of seconds, at least 0, not {self.period}")
        found: dict[int, list[tuple[float, float]]] = {}
        for client, start, end in _windows(Path(self.path), self.period):
            found.setdefault(client, []).append((start, end))
        object.__setattr__(self, "windows", {i: tuple(sorted(w)) for i, w in sorted(found.items())})

    def _begin(self, clock: float) -> float:
        return clock // self.period * self.period if self.period else 0.0

    def __call__(self, client: int, device: Device, round: int, clock: float, key: Key) -> bool:
        """Is this time inside one of the client's windows?"""
        now = clock - self._begin(clock)
        return any(start <= now < end for start, end in self.windows.get(client, ()))

    def next(self, client: int, device: Device, clock: float, key: Key) -> float:
        """Now, or when its next window begins."""
        if self(client, device, 0, clock, key):
            return clock
        begin = self._begin(clock)
        mine = [start for start, _ in self.windows.get(client, ())]
        later = [begin + start for start in mine if begin + start > clock]
        if self.period and mine:
            later.append(begin + self.period + mine[0])
        return min(later, default=math.inf)


def _windows(path: Path, period: float) -> Iterable[tuple[int, float, float]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"the trace {path} cannot be read: {error.strerror}") from error
    rows: Iterable[tuple[int, Any]]
    if lines and lines[0].lstrip().startswith("{"):
        rows = ((n, _parsed(path, n, line)) for n, line in enumerate(lines, 1) if line.strip())
    else:
        rows = enumerate(csv.DictReader(lines), 2)
    for n, row in rows:
        try:
            client, start, end = int(row["client"]), float(row["start"]), float(row["end"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"{path}, line {n}: a window is a client, a start and an end in seconds, not {row}"
            ) from None
        if not 0 <= start < end or (period and end > period):
            inside = f" and ends by {period:g}" if period else ""
            raise ValueError(
                f"{path}, line {n}: a window starts at 0 or later, before its end{inside}, not {start} to {end}"
            )
        yield client, start, end


def _parsed(path: Path, n: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise ValueError(f"{path}, line {n} is not JSON: {line[:60]!r}") from None


@dataclass(frozen=True)
class Stragglers:
    """A ``share`` of the orders takes ``factor`` times as long; with ``fixed``, those of the same clients all along."""

    share: float = 0.0
    factor: float = 1.0
    fixed: bool = False

    def __post_init__(self) -> None:
        _share("share", self.share)
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"factor says how many times as long it takes: a number, at least 1, not {self.factor}")

    def __call__(self, client: int, round: int, key: Key) -> float:
        """How many times as long this order takes."""
        if self.share == 0:
            return 1.0
        at = key.at(client) if self.fixed else key.at("round", round, client)
        return self.factor if chance(at) < self.share else 1.0
