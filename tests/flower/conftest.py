from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedquilt.deploy.app import flat
from fedquilt.drive.flower import client
from fedquilt.run import Run

from .grid import InMemory, Nodes


@pytest.fixture(autouse=True)
def workers_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nodes:
    """The apps' workers are objects of this process, and nodes keep their memories here."""
    nodes = Nodes()
    monkeypatch.setattr(client, "ask", nodes)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    return nodes


def config_of(run: Run, out: Path, **more: Any) -> dict[str, Any]:
    """The configuration of a Flower app, as Flower flattens it."""
    return {"out": str(out), "poll": 0.001, **more, **{f"run.{k}": v for k, v in flat(run).items()}}


def grid_of(run: Run, config: Mapping[str, Any], clients: int | None = None) -> InMemory:
    """A grid of a node for each client; their ids are in no order."""
    n = run.clients if clients is None else clients
    return InMemory({(7919 * (i + 3)) % 10007: {"client-id": i} for i in range(n)}, config)
