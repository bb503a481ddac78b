"""Every example runs as it is shown, and its method is of three papers' parts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedquilt.drive.sim import Simulator
from fedquilt.parts.codecs import Coded
from fedquilt.parts.merge import ServerAdam
from fedquilt.parts.presence import LeastAvailable
from fedquilt.parts.send import Except, Random, Rolling
from fedquilt.parts.utility import PowerOfChoice, Utility

from ..world import FAMILIES, play, replace, world

FOLDER = Path(__file__).parents[2] / "examples"
COMBINED: dict[str, tuple[type, ...]] = {
    "rolling_windows_oort_8bit": (Utility, Rolling, Coded),
    "personal_heads_yogi_refl": (LeastAvailable, Except, ServerAdam),
    "frozen_units_choice_topk": (PowerOfChoice, Random, Coded),
}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sim_of(name: str, family: str, **more: Any) -> Simulator:
    method = loaded(name).method(fraction=1.0)
    local = method.local
    train = {"epochs": 1, "batch": 4}
    local = replace(local, train=replace(local.train, **train)) if isinstance(local, Coded) else replace(local, **train)
    schedule = replace(method.schedule, over=1.0)
    return world(replace(method, local=local, schedule=schedule), family, **more)


@pytest.mark.parametrize("name", COMBINED)
def test_an_example_runs_as_it_is_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    loaded(name).main(rounds=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("accuracy 0." in line for line in lines)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", COMBINED)
def test_parts_of_three_papers_go_together(name: str, family: str) -> None:
    sim = sim_of(name, family)
    method = sim.method
    assert {type(p) for p in (method.select, method.send, method.local, method.merge)} >= set(COMBINED[name])
    now, told = play(sim, 2)
    assert [r.record["outcomes"] for r in told] == [{"accepted": 5}] * 2
    assert any(
        bool((v != sim.model.params()[k]).any()) for k, v in now.state.params.items() if k in sim.model.trainable
    )


def test_eight_bits_a_coordinate() -> None:
    """A full window goes down in four bytes a coordinate and comes back in one."""
    row = play(sim_of("rolling_windows_oort_8bit", "cnn", widths=(1.0,)), 1)[1][0].clients[0]
    assert 0.2 < row["up"] / row["down"] < 0.35
