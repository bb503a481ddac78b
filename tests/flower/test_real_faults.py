"""The slow ways in which real processes die: each is waited for as long as Flower takes to notice."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from .real import Federation, certificates, federation, node_key
from .test_real import app, asked, deployed, rounds, same, workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


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
            f.wait(lambda: any(committed(f, i, 3) for i in range(3)), 600, "no memory of round 3")
            done = len(rounds(out))
            killed = f.processes("flwr-serverapp")
            for p in killed:
                p.kill()
            said = run.result(timeout=1200)
        assert killed and done == 2 and "what is kept goes on" in said
        assert [r["round"] for r in rounds(out)] == [1, 2, 3, 4, 5]
        same(out, asked("fedspu"))


def test_a_superlink_that_is_restarted_ends_the_run_and_it_goes_on(tmp_path: Path) -> None:
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu"))
        with going(f, folder) as run:
            f.wait(lambda: len(rounds(out)) >= 2, 600, "two rounds were not finished")
            assert f.link is not None
            f.kill(f.link)
            time.sleep(2)
            f.start_link()
            run.result(timeout=1200)
        same(out, asked("fedspu"))


def test_a_worker_that_is_killed_costs_a_reply_and_another_takes_its_place(tmp_path: Path) -> None:
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu", rounds=4))
        with going(f, folder) as run:
            f.wait(lambda: len(rounds(out)) >= 1, 600, "no round was finished")
            [worker] = workers(f, "node1")
            worker.kill()
            run.result(timeout=1200)
        outcomes = [r["outcomes"] for r in rounds(out)]
        # killed while it worked: one failure; between two messages: none
        assert sum(o.get("failed", 0) for o in outcomes) <= 1
        assert outcomes[-1] == {"accepted": 3}


def asking(worker: psutil.Process) -> bool:
    """Is somebody connected to its socket, beside the socket that listens?"""
    [place] = [Path(w) for w in worker.cmdline() if w.endswith(".sock")]
    return Path("/proc/net/unix").read_text().count(str(place.with_suffix(""))) > 1


def test_a_client_app_that_is_killed_costs_a_reply(tmp_path: Path) -> None:
    """While it waits for its worker, which is held up; Flower notices after about a minute, and the worker lives on."""
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu", rounds=4))
        with going(f, folder) as run:
            f.wait(lambda: len(rounds(out)) >= 1, 600, "no round was finished")
            [worker] = workers(f, "node1")
            worker.suspend()
            f.wait(lambda: asking(worker), 300, "no app asks the worker")
            for p in f.processes("flwr-clientapp", "node1"):
                p.kill()
            worker.resume()
            run.result(timeout=1200)
            assert workers(f, "node1") == [worker]
        outcomes = [r["outcomes"] for r in rounds(out)]
        # the second round had begun, and may have ended before the worker was held up
        lost = {"accepted": 2, "failed": 1}
        assert lost in outcomes[1:3] and [o for o in outcomes if o != lost] == [{"accepted": 3}] * 3
        records = [json.loads(line) for line in (out / "clients.jsonl").read_text().splitlines()]
        [failed] = [r for r in records if r["outcome"] == "failed"]
        assert failed["client"] == 1 and "Flower's error" in failed["reason"]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_supernode_that_comes_back_with_its_key_is_the_same_client(sign: signal.Signals, tmp_path: Path) -> None:
    with federation(tmp_path) as f:
        folder, out = app(f, "a", asked("fedspu", rounds=12), patience=120)
        with going(f, folder) as run:
            f.wait(lambda: len(rounds(out)) >= 1, 600, "no round was finished")
            f.kill(f.nodes[1], sign)
            while not run.done():  # Flower refuses its key until it has marked the dead one offline
                if f.nodes[1].poll() is not None:
                    f.start_node(1)
                time.sleep(2)
            run.result()
        merged = [r["merged"] for r in rounds(out)]
        assert [0, 2] in merged and merged[-1] == [0, 1, 2]


def test_a_node_of_another_key_or_authority_is_refused(tmp_path: Path) -> None:
    with federation(tmp_path, clients=1) as f:
        node_key(f.folder, "key9")
        f.start_node(9)  # nobody has registered its key
        (tmp_path / "other").mkdir()
        certificates(tmp_path / "other")
        f.register(1)
        f.start_node(1, authority="other/ca.crt")  # it trusts another authority than the SuperLink's
        f.wait(lambda: all(f.nodes[i].poll() is not None for i in (1, 9)), 300, "a SuperNode runs on")
        assert f.nodes[1].poll() != 0 and f.nodes[9].poll() != 0 and f.nodes[0].poll() is None


def test_a_setting_that_the_server_refuses_is_not_submitted_again(tmp_path: Path) -> None:
    with federation(tmp_path, clients=0) as f:
        folder, out = app(f, "a", asked("fedspu"))
        file = folder / "pyproject.toml"
        file.write_text(file.read_text().replace('partition = "dirichlet:0.5"', 'partition = "by-luck"'))
        done = f.fedquilt("deploy", "run", str(folder), "tls")
        assert done.returncode == 2 and not out.exists(), done.stdout
        assert "fedquilt: the server refused the run: " in done.stderr and "by-luck" in done.stderr
        assert done.stdout.count("started run") == 1
