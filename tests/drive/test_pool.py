"""Worker processes: the bits of the serial engine, however many and however started; and their deaths."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fedquilt.drive.pool import Pool
from fedquilt.drive.score import score
from fedquilt.drive.sim import Simulator
from fedquilt.methods import METHODS
from fedquilt.parts.local import Train
from fedquilt.parts.schedule import Buffered
from fedquilt.store import OnDisk
from fedquilt.types import Client, Order, Work

from ..laws.strategies import all_bits
from ..world import play, small, world

ROUNDS = 3


@contextmanager
def pooled(sim: Simulator, folder: Path, workers: int, start: str) -> Iterator[Simulator]:
    sim.site.memories = OnDisk(folder, durable=False)  # type: ignore[attr-defined]
    with Pool(sim.site, workers, start) as pool:  # type: ignore[arg-type]
        yield replace(sim, site=pool)


def said(sim: Simulator, rounds: int = ROUNDS) -> tuple[Any, ...]:
    now, told = play(sim, rounds)
    return all_bits(dict(now.state.params)), [(r.record, r.clients) for r in told], score(sim, now.state, range(5))


@pytest.mark.parametrize(("workers", "start"), [(1, "fork"), (2, "fork"), (4, "fork"), (2, "spawn")])
def test_any_number_of_workers_gives_the_serial_bits(workers: int, start: str, tmp_path: Path) -> None:
    want = said(world(small(METHODS["fedspu"], momentum=0.5)))
    with pooled(world(small(METHODS["fedspu"], momentum=0.5)), tmp_path, workers, start) as sim:
        assert said(sim) == want


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_the_serial_bits(name: str, tmp_path: Path) -> None:
    want = said(world(small(METHODS[name])))
    with pooled(world(small(METHODS[name])), tmp_path, 2, "fork") as sim:
        assert said(sim) == want


def test_a_buffered_schedule_gives_the_serial_bits(tmp_path: Path) -> None:
    method = replace(small(METHODS["fedavg"]), schedule=Buffered(busy=4, k=2))
    want = said(world(method))
    with pooled(world(method), tmp_path, 2, "fork") as sim:
        assert said(sim) == want


@dataclass(frozen=True)
class Dies(Train):
    """Client 2's process is killed in its work in round 1; client 3's work raises there."""

    def __call__(self, order: Order, client: Client) -> Work:
        if order.round == 1 and client.id == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if order.round == 1 and client.id == 3:
            raise RuntimeError("no more battery")
        return super().__call__(order, client)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_workers_death_is_one_clients_failure(workers: int, tmp_path: Path) -> None:
    method = small(METHODS["fedavg"])
    local = method.local
    assert isinstance(local, Train)
    dying = replace(method, local=Dies(local.optim, local.epochs, local.batch))
    plain = world(dying)
    plain.site.engine.strict = False  # type: ignore[attr-defined]
    with pooled(plain, tmp_path, workers, "fork") as sim:
        now, told = play(sim, ROUNDS)
    assert [r.record["merged"] for r in told] == [[0, 1, 2, 3, 4], [0, 1, 4], [0, 1, 2, 3, 4]]
    reasons = {c["client"]: c["reason"] for c in told[1].clients if c["outcome"] == "failed"}
    assert reasons.keys() == {2, 3} and "SIGKILL" in reasons[2] and "no more battery" in reasons[3]
    assert now.state.round == ROUNDS


def test_workers_end_with_the_pool_and_with_their_parent(tmp_path: Path) -> None:
    sim = world(small(METHODS["fedavg"]))
    with pooled(sim, tmp_path, 2, "fork") as working:
        play(working, 1)
        assert isinstance(working.site, Pool)
        processes = [w.process for w in working.site._workers]
        assert all(p.is_alive() for p in processes)
    assert not any(p.is_alive() for p in processes)
    parent = os.fork()
    if parent == 0:  # a parent that dies without a word
        again = world(small(METHODS["fedavg"]))
        again.site.memories = OnDisk(tmp_path / "b", durable=False)  # type: ignore[attr-defined]
        pool = Pool(again.site, 2, "fork")  # type: ignore[arg-type]
        (tmp_path / "pids").write_text(" ".join(str(w.process.pid) for w in pool._workers))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    for pid in (tmp_path / "pids").read_text().split():
        assert ended(int(pid)), "a worker outlives its parent"


def ended(pid: int) -> bool:
    """Is the process gone (or a zombie nobody has waited for) within ten seconds?"""
    import time

    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_memories_in_ram_are_refused() -> None:
    with pytest.raises(ValueError, match="OnDisk"):
        Pool(world(small(METHODS["fedavg"])).site, 2)  # type: ignore[arg-type]
