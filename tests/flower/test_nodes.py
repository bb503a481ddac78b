"""Nodes: data and devices of their own, and the line between an app and its node's worker."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sklearn.datasets import load_digits

from fedquilt.drive.flower import client, letter, line
from fedquilt.drive.flower.letter import Broken, Letter
from fedquilt.drive.flower.node import Node, device_of, identity
from fedquilt.drive.flower.server import serve
from fedquilt.fleet import PROFILES, Device
from fedquilt.schema import BadSetting

from .conftest import config_of, grid_of
from .test_same_bits import tiny


def test_a_node_may_have_data_and_a_device_of_its_own(tmp_path: Path) -> None:
    x, y = load_digits(return_X_y=True)
    rows = [",".join(map(str, [*(a / 16), int(b)])) for a, b in zip(x[:100], y[:100], strict=True)]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    asked = tiny("heterofl", rounds=2, eval_every=1)
    config = config_of(asked, tmp_path / "r")
    grid = grid_of(asked, config)
    [node] = [n for n, c in grid.configs.items() if c["client-id"] == 2]
    own = f"csv:{tmp_path / 'mine.csv'}:shape=1x8x8:classes=10"
    grid.configs[node] = {"client-id": 2, "data": own, "profile": "jetson-nano", "width": 0.4}
    done = serve(grid, config)
    [first, _] = [c for c in done.history.clients if c["client"] == 2]
    assert (first["outcome"], first["weight"], first["tier"]) == ("accepted", 60, "0.4")
    assert [r["outcomes"] for r in done.history.rounds] == [{"accepted": 5}] * 2
    # the server does not have everybody's data, so nobody says how good the global model is on them
    assert {r["model"] for r in done.history.scores} == {"served"}
    assert {r["client"] for r in done.history.scores} == {0, 1, 2, 3, 4}


def test_a_width_without_statistics_takes_no_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = tiny("heterofl", rounds=1, norm="per-width", eval_every=0)
    config = config_of(asked, tmp_path / "r", patience=0.5)
    grid = grid_of(asked, config)
    [node] = [n for n, c in grid.configs.items() if c["client-id"] == 3]
    grid.configs[node] = {"client-id": 3, "width": 0.5}
    done = serve(grid, config)
    assert done.history.rounds[0]["asked"] == [0, 1, 2, 4]
    assert "width 0.5, and this run has statistics of the widths 0.2, 0.4" in capsys.readouterr().out


@pytest.mark.parametrize("said", [{}, {"client-id": 5}, {"client-id": "0"}, {"client-id": True}, {"partition-id": -1}])
def test_a_node_says_which_client_it_is(said: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match="from 0 to 4"):
        identity(said, 5)


def test_the_device_of_a_node() -> None:
    given = Device(width=0.6)
    assert device_of({}, given) == given
    assert device_of({"profile": "jetson-nano"}, given) == PROFILES["jetson-nano"]
    assert device_of({"width": 0.2}, given).width == 0.2
    with pytest.raises(BadSetting, match="did you mean 'jetson-nano'"):
        device_of({"profile": "jetson-nanno"}, given)


def test_orders_of_others_are_refused(tmp_path: Path) -> None:
    from fedquilt.drive.wire import encode_order

    config = config_of(tiny("fedavg"), tmp_path)
    about = {"settings": client.settings_in(config), "node": {"client-id": 0}, "home": str(tmp_path)}
    node = Node.of(about)
    sim = node.prepared.sim
    state = sim.begin().state
    theirs = sim.method.order(state, 1, sim.fleet, sim.model, sim.key, sim.run)
    with pytest.raises(ValueError, match="client 1's, and this node is client 0's"):
        node.answer(Letter({"kind": "work"}, encode_order(theirs)))
    other = sim.method.order(state, 0, sim.fleet, sim.model, sim.key, "another")
    with pytest.raises(ValueError, match="of run another"):
        node.answer(Letter({"kind": "work"}, encode_order(other)))
    assert not list(tmp_path.rglob("*.safetensors"))


# ---- the line
def test_a_name_that_is_too_long_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ("x" * 90)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 90)))
    with pytest.raises(OSError, match="set TMPDIR"):
        line.place_of({})


def test_frames_of_another_version_and_cut_lines_are_refused() -> None:
    for wrong, why in (
        (b"FQL\x63" + bytes(12), "another version"),
        (letter.MAGIC + bytes(3), "cut after 7 of 16"),
        (letter.FRAME.pack(letter.MAGIC, 2, 0) + b"{{", "no JSON"),
    ):
        here, there = socket.socketpair()
        with here, there:
            there.sendall(wrong)
            there.close()
            with pytest.raises(Broken, match=why):
                letter.receive(here)


def test_letters_go_through_a_socket_as_they_are() -> None:
    here, there = socket.socketpair()
    sent = Letter({"kind": "work", "splits": ["val"], "x": 1.5}, os.urandom(1 << 20))
    with here, there:
        writer = threading.Thread(target=letter.send, args=(there, sent))
        writer.start()
        assert letter.receive(here) == sent
        writer.join()


def test_who_has_read_a_letter_may_close_the_line() -> None:
    here, there = socket.socketpair()

    class Quick:
        """A line at whose other end the first bytes are read and the line is closed, before this end goes on."""

        def sendall(self, data: bytes) -> None:
            here.sendall(data)
            there.recv(1 << 16)
            there.close()

    with here, there:
        letter.send(Quick(), Letter({"kind": "hello"}))  # type: ignore[arg-type]


def test_a_worker_is_started_once_answers_all_and_dies_with_its_node(tmp_path: Path) -> None:
    """Two short processes, one after another, as Flower starts them, below one that stands for the node."""
    config = config_of(tiny("fedavg"), tmp_path / "r")
    about = {"settings": client.settings_in(config), "node": {"client-id": 1}, "home": str(tmp_path / "h")}
    ask = (
        "import json, sys; from fedquilt.drive.flower.letter import Letter; from fedquilt.drive.flower.line import ask;"
        "assert 'torch' not in sys.modules;"
        "print(json.dumps(ask(json.loads(sys.argv[1]), Letter({'kind': 'hello'}), 200).facts))"
    )
    run = "subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=True)"
    node = f"import subprocess, sys; [{run} for _ in range(2)]; input()"
    root = str(Path(__file__).parents[2])
    short = Path(tempfile.mkdtemp(prefix="fq"))
    process = subprocess.Popen(
        [sys.executable, "-c", node, ask, json.dumps(about)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root,
        env=os.environ | {"PYTHONPATH": root, "TMPDIR": str(short), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        said = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert said[0] == said[1] and said[0]["client"] == 1
        sockets = list(short.rglob("*.sock"))
        assert len(sockets) == 1 and sockets[0].parent.stat().st_mode & 0o077 == 0
        [worker] = [p for p in psutil.process_iter(["cmdline"]) if str(sockets[0]) in (p.info["cmdline"] or [])]
    finally:
        process.kill()
        process.communicate()
    end = time.monotonic() + 30
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "the worker outlives its node"
        time.sleep(0.05)
    assert not sockets[0].exists()
    shutil.rmtree(short)
    assert line.place_of(about) != line.place_of({**about, "node": {"client-id": 2}})
