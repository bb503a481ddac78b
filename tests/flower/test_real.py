"""A real SuperLink and three SuperNode processes on loopback, with TLS and node authentication."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedquilt.run import Run, run

from ..laws.strategies import all_bits
from .conftest import config_of
from .real import Federation, federation
from .test_same_bits import by_client, tiny

METHODS = ("fedavg", "fedspu", "ditto")


def asked(method: str, **more: Any) -> Run:
    return tiny(method, clients=3, **{"eval_every": 0} | more)


def words(what: Run) -> list[str]:
    """A run as the words of a command."""
    flat = {k[4:]: v for k, v in config_of(what, Path()).items() if k.startswith("run.") and k != "run.method"}
    said = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in flat.items() if v != ""}
    return [str(what.method["name"]), *(w for k, v in said.items() for w in (f"--{k.replace('_', '-')}", v))]  # type: ignore[index]


def app(f: Federation, name: str, what: Run, patience: float = 400.0) -> tuple[Path, Path]:
    """The Flower app of a run, and the folder that will keep it."""
    folder, out = f.folder / f"app-{name}", f.folder / f"run-{name}"
    made = f.fedquilt("deploy", "init", str(folder), *words(what), "--out", str(out), "--patience", str(patience))
    assert made.returncode == 0, made.stderr
    return folder, out


def deployed(f: Federation, folder: Path, *more: str) -> str:
    """Submit it and wait for the end; what the command says."""
    done = f.fedquilt("deploy", "run", str(folder), "tls", *more)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{f.log('link')}\n{f.log('node0')}"
    return done.stdout


def rounds(out: Path) -> list[dict[str, Any]]:
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def same(out: Path, what: Run) -> None:
    """The run in the folder is what the simulator makes of it: parameters to the bit, and each client's counts."""
    far, alone = run(what, out, resume=True), run(what)
    assert all_bits(far.params) == all_bits(alone.params)
    assert by_client(far.history.clients) == by_client(alone.history.clients)


def workers(f: Federation, node: str = "") -> Sequence[psutil.Process]:
    """The workers of this federation's nodes."""
    return f.processes("fedquilt.drive.flower.worker", node)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path) as f:
        yield f


@pytest.mark.timeout(1800)  # dozens of processes, on a machine that may be busy
def test_three_real_nodes_give_the_simulators_bits_and_one_may_be_killed(three: Federation) -> None:
    """One federation, since each process of Flower takes seconds to start: three methods side by side, then a kill."""
    apps = {m: app(three, m, asked(m)) for m in METHODS}
    with ThreadPoolExecutor(len(apps)) as pool:
        said = list(pool.map(lambda a: deployed(three, a[0], "--attempts", "1"), apps.values()))
    assert all("the run is finished" in s for s in said)
    for method, (_, out) in apps.items():
        assert [r["outcomes"] for r in rounds(out)] == [{"accepted": 3}] * 5, method
        same(out, asked(method))
    assert len(workers(three)) == 3 * len(METHODS)  # one for each node and run, not one for each message
    closes_by_its_deadline(three)
    three.end()
    end = time.monotonic() + 120
    while workers(three):
        assert time.monotonic() < end, "workers outlive their nodes"
        time.sleep(0.1)


def closes_by_its_deadline(f: Federation) -> None:
    """A SuperNode is killed in a round: its reply is missing, and those of the rest are merged.

    It is asked no more once Flower lists its node no longer, which may take until after the next round has begun.
    """
    folder, out = app(f, "killed", asked("fedspu", rounds=3, schedule="deadline:seconds=60"))
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(deployed, f, folder, "--attempts", "1")
        f.wait(lambda: len(rounds(out)) >= 1, 600, "no round was finished")
        f.kill(f.nodes[2])  # the second round has begun, and its answer cannot have come yet
        going.result(timeout=900)
    told = [(r["asked"], r["merged"], r["outcomes"]) for r in rounds(out)]
    assert told[0] == ([0, 1, 2], [0, 1, 2], {"accepted": 3})
    # Flower may say by then that the node is gone, or may not: its reply is lost either way
    lost = [([0, 1, 2], [0, 1], {"accepted": 2, outcome: 1}) for outcome in ("late", "failed")]
    assert told[1] in lost
    assert told[2] in [([0, 1], [0, 1], {"accepted": 2}), *lost]
