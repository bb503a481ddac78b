"""The slow ways in which real processes die: each is waited for as long as Flower takes to notice."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from .real import Federation, federation
from .test_real import app, asked, deployed, rounds, same, workers

pytestmark = pytest.mark.slow


@contextmanager
def going(f: Federation, folder: Path) -> Iterator[Future[str]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(deployed, f, folder, "--attempts", "4")


def committed(f: Federation, client: int, version: int) -> bool:
    """Has the client's disk this version of its memory?"""
    return any((f.folder / f"node{client}").rglob(f"{client}/{version}.safetensors"))


def test_a_server_app_killed_between_commit_and_reply_is_submitted_again(tmp_path: Path) -> None:
    """kill -9 when a memory of the third round is on a client's disk: one round is done again, with the same result."""
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu"))
        with going(f, folder) as run:
            f.wait(lambda: any(committed(f, i, 3) for i in range(3)), 300, "no memory of round 3")
            done = len(rounds(out))
            for p in psutil.process_iter(["cmdline"]):
                if any("flwr-serverapp" in w for w in p.info["cmdline"] or []) and p.environ().get(
                    "FLWR_HOME", ""
                ).startswith(str(tmp_path)):
                    p.kill()
            said = run.result(timeout=600)
        assert done == 2 and "what is kept goes on" in said
        assert [r["round"] for r in rounds(out)] == [1, 2, 3, 4, 5]
        same(out, asked("fedspu"))


def test_a_superlink_that_is_restarted_ends_the_run_and_it_goes_on(tmp_path: Path) -> None:
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu"))
        with going(f, folder) as run:
            f.wait(lambda: len(rounds(out)) >= 2, 300, "two rounds were not finished")
            assert f.link is not None
            f.kill(f.link)
            time.sleep(2)
            f.start_link()
            run.result(timeout=600)
        same(out, asked("fedspu"))


def test_a_worker_that_is_killed_costs_a_reply_and_another_takes_its_place(tmp_path: Path) -> None:
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu", rounds=4))
        with going(f, folder) as run:
            f.wait(lambda: len(rounds(out)) >= 1, 300, "no round was finished")
            [worker] = [p for p in workers(f) if str(f.folder / "node1") in p.environ().get("FLWR_HOME", "")]
            worker.kill()
            run.result(timeout=600)
        outcomes = [r["outcomes"] for r in rounds(out)]
        # killed while it worked: one failure; between two messages: none
        assert sum(o.get("failed", 0) for o in outcomes) <= 1
        assert outcomes[-1] == {"accepted": 3}


def test_a_supernode_that_comes_back_with_its_key_is_the_same_client(tmp_path: Path) -> None:
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu", rounds=12), patience=120)
        with going(f, folder) as run:
            f.wait(lambda: len(rounds(out)) >= 1, 300, "no round was finished")
            f.kill(f.nodes[1], signal.SIGTERM)
            until = time.monotonic() + 120
            while time.monotonic() < until:  # Flower refuses its key until it has marked the dead one offline
                f.start_node(1)
                time.sleep(8)
                if f.nodes[1].poll() is None:
                    break
            run.result(timeout=900)
        merged = [r["merged"] for r in rounds(out)]
        assert [0, 2] in merged and merged[-1] == [0, 1, 2]


def test_a_node_whose_key_is_not_registered_is_refused(tmp_path: Path) -> None:
    with federation(tmp_path, clients=1) as f:
        from .real import node_key

        node_key(f.folder, "key9")
        f.start_node(9)
        f.wait(lambda: f.nodes[9].poll() is not None, 90, "the SuperNode runs on")
        assert f.nodes[9].poll() != 0
