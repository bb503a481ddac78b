"""The simulator and Flower's messages: the same method object, the same bits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedquilt.drive.flower.server import serve
from fedquilt.methods import METHODS
from fedquilt.run import Run, run
from fedquilt.schema import settings

from ..laws.strategies import all_bits
from .conftest import config_of, grid_of

# Of every kind: partial models, personal ones, masks, state at the server, selections and stops that learn.
TEN = ("fedavg", "fedprox", "fedspu", "heterofl", "fedrolex", "ditto", "fedper", "lotteryfl", "flrce", "fedlps")
NAMES = (*TEN, "scaffold")
COUNTED = ("down", "up", "flops", "fallbacks", "peak")  # joules are added up in the order of arrival
TIMELESS = ("round", "asked", "merged", "outcomes", "loss", "stopped", *COUNTED)


def tiny(method: str, **more: Any) -> Run:
    """Five clients of every width, five rounds, more than one local step."""
    given = {"fraction": 1.0, "epochs": 1, "batch": 16, "lr": 0.05}
    known = {k: v for k, v in given.items() if k in settings(METHODS[method])}
    spec = {"name": method, **known}
    base: dict[str, Any] = {
        "clients": 5,
        "rounds": 5,
        "eval_every": 2,
        "model": "cnn:conv=4,8",
        "partition": "dirichlet:0.5",
    }
    return Run(method=spec, **(base | more))


@pytest.mark.parametrize("method", NAMES)
def test_flowers_messages_give_the_simulators_bits(method: str, tmp_path: Path) -> None:
    asked = tiny(method)
    alone = run(asked, tmp_path / "sim")
    config = config_of(asked, tmp_path / "flower")
    grid = grid_of(asked, config)
    far = serve(grid, config)
    assert all_bits(far.params) == all_bits(alone.params)
    assert far.record["id"] == alone.record["id"]
    for a, b in zip(far.history.rounds, alone.history.rounds, strict=True):
        assert {k: a[k] for k in TIMELESS} == {k: b[k] for k in TIMELESS}
    assert by_client(far.history.clients) == by_client(alone.history.clients)
    assert sorted(map(str, far.history.scores)) == sorted(map(str, alone.history.scores))
    # what is metered is what Flower was given
    trained = [n for _, kind, n in grid.down if kind == "train"], [n for _, kind, n in grid.up if kind == "train"]
    assert tuple(map(sum, trained)) == tuple(sum(r[k] for r in far.history.rounds) for k in ("down", "up"))


def test_who_is_not_selected_is_asked_for_scores_alone(tmp_path: Path) -> None:
    whole = tiny("fedspu", eval_every=1)
    asked = replace(whole, method={**whole.method, "fraction": 0.4})  # type: ignore[dict-item]
    alone = run(asked, tmp_path / "sim")
    config = config_of(asked, tmp_path / "flower")
    grid = grid_of(asked, config)
    far = serve(grid, config)
    assert all_bits(far.params) == all_bits(alone.params)
    assert sorted(map(str, far.history.scores)) == sorted(map(str, alone.history.scores))
    kinds = Counter(kind for _, kind, _ in grid.down)
    # six states are scored, the first five of them by the way where there is work
    assert kinds == {"query": 5, "train": 5 * 2, "evaluate": 5 * 3 + 5}


def test_who_uses_another_part_than_it_trains_scores_that(tmp_path: Path) -> None:
    """A client of fedmp trains the strongest units, and uses the whole model."""
    asked = tiny("fedmp", eval_every=1, rounds=3)
    alone = run(asked, tmp_path / "sim")
    config = config_of(asked, tmp_path / "flower")
    far = serve(grid_of(asked, config), config)
    assert all_bits(far.params) == all_bits(alone.params)
    assert by_client(far.history.clients) == by_client(alone.history.clients)
    assert sorted(map(str, far.history.scores)) == sorted(map(str, alone.history.scores))


def by_client(records: list[Any]) -> list[Any]:
    """The records, less what only a real clock says, in an order of their own."""
    less = [{k: v for k, v in r.items() if k not in ("wall", "inside")} for r in records]
    return sorted(less, key=lambda r: (r["round"], r["client"]))
